"""What is written into a picture comes out of it as it went in, whatever it is."""

from xml.etree import ElementTree

from sp.show.pictures.elements import alone, element, label, moved, picture, written

EVIL = "</text><script>alert('1')</script>\"&\x00\x1b\ud800"
TAMED = EVIL.replace("\x00", "\ufffd").replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")


def test_text_and_attributes_are_escaped() -> None:
    text = alone(picture(10, 20, EVIL, EVIL, [label(1, 2, EVIL, EVIL)]))
    root = ElementTree.fromstring(text.encode())
    tags = [each.tag.rpartition("}")[2] for each in root.iter()]
    assert tags == ["svg", "title", "desc", "style", "rect", "text"]
    assert [root[0].text, root[1].text, root[4].text, root[4].attrib["class"]] == [TAMED] * 4


def test_numbers_are_rounded() -> None:
    text = written(moved(1 / 3, 2.0, [element("rect", {"x": 0.1 + 0.2, "y": 5})]))
    assert text == '<g transform="translate(0.33 2)"><rect x="0.3" y="5" /></g>'
