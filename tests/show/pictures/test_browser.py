"""The page in a real browser, from a file: nothing goes wrong, and what can be pressed does what it says."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sp
from sp.models import Llama, LlamaConfig

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.skipif(BROWSER is None, reason="no Chromium is on the PATH: apt-get install chromium"),
    pytest.mark.skipif(DRIVER is None, reason="no chromedriver is on the PATH: apt-get install chromium-driver"),
]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    ids = torch.zeros(1, 64, dtype=torch.long)
    model = Llama(LlamaConfig(layers=2, heads=4, kv_heads=2, width=32))
    report = sp.inspect(model, (ids,), {"labels": ids}, strategy="ring", world_size=4)
    path = tmp_path_factory.mktemp("page") / "page.html"
    report.to_html(path)
    path.with_name("frame.html").write_text(f"<!doctype html><title>frame</title>{report._repr_html_()}", "utf-8")
    report.to_svg("plan", path.with_name("plan.svg"))
    return path


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    for flag in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1440,900",
    ):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Any, page: Path) -> Iterator[Any]:
    chromium.get(page.as_uri())
    yield chromium
    assert chromium.get_log("browser") == [], "the console stays empty, whatever is pressed"


def all_of(browser: Any, selector: str) -> list[Any]:
    return browser.find_elements("css selector", selector)


def one(browser: Any, selector: str) -> Any:
    (found,) = all_of(browser, selector)
    return found


def details(browser: Any) -> str:
    return one(browser, ".details").text


def test_it_opens_at_the_first_attention(browser: Any) -> None:
    assert browser.title == "ring on 4 ranks · sp"
    assert "attention_default" in details(browser)
    assert "mask causal, proven" in details(browser)


def test_a_node_that_is_clicked_says_why(browser: Any) -> None:
    row = next(each for each in all_of(browser, '[data-graph="1"] .inserted button') if each.text.startswith("shard "))
    row.click()
    text = details(browser)
    assert "inserted: ids_BS is whole on every rank and meets values that are sharded(dim 1)" in text
    assert "sharded(dim 1)" in text
    assert all_of(browser, ".edge.on"), "what it reads is shown"
    next(each for each in all_of(browser, ".details button") if each.text == "embedding").click()
    assert one(browser, ".details h4").text == "embedding"
    assert "llama.py:" in details(browser)
    assert one(browser, ".twin button").text.startswith("embedding"), "the same value, in the other graph"


def test_arrow_keys_move_from_row_to_row(browser: Any) -> None:
    first = all_of(browser, '[data-graph="0"] .listing button')[0]
    first.click()
    for name in ("labels", "embedding"):
        browser.switch_to.active_element.send_keys("\ue015")  # down
        assert one(browser, ".details h4").text == name
    assert browser.switch_to.active_element.text.startswith("embedding")


def test_the_slider_shows_one_step(browser: Any) -> None:
    slider, name = one(browser, ".step"), one(browser, ".step-name")
    assert name.text == "all steps"
    slider.send_keys("\ue014" * 2)  # right
    assert name.text == "step 1"
    assert slider.get_attribute("aria-valuetext") == "step 1"
    for block in all_of(browser, ".panel .block"):
        step, marks = int(block.get_attribute("data-step")), block.get_attribute("class").split()
        assert ("before" in marks, "later" in marks) == (step < 1, step > 1)
    slider.send_keys("\ue012" * 2)  # left
    assert not all_of(browser, ".later, .before")


def test_the_sequence_can_be_seen_in_its_own_order(browser: Any) -> None:
    tiles, tokens = all_of(browser, ".view.tiles"), all_of(browser, ".view.tokens")
    assert [each.is_displayed() for each in (*tiles, *tokens)] == [True] * 3 + [False] * 3
    one(browser, 'input[value="tokens"]').click()
    assert [each.is_displayed() for each in (*tiles, *tokens)] == [False] * 3 + [True] * 3


def test_the_graph_can_be_zoomed(browser: Any) -> None:
    high = "return document.querySelector('.scroll').scrollHeight"
    before = browser.execute_script(high)
    one(browser, "#zoom").send_keys("\ue012" * 8)  # left
    assert browser.execute_script(high) == pytest.approx(0.6 * before, rel=0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1440])
def test_it_fits_and_can_be_read(browser: Any, scheme: str, width: int) -> None:
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    ratio = browser.execute_script(CONTRAST)
    wide = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    assert wide <= width
    assert ratio >= 4.5, "WCAG 2.1, level AA"


# The least contrast of text and ground among kinds of text, ground being the nearest one that is not transparent.
CONTRAST = """
const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
const linear = (c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const light = (colour) => channels(colour).slice(0, 3)
  .reduce((sum, c, i) => sum + linear(c / 255) * [0.2126, 0.7152, 0.0722][i], 0);
const ground = (element) => {
  for (; element; element = element.parentElement) {
    const colour = getComputedStyle(element).backgroundColor;
    if ((channels(colour)[3] ?? 1) > 0) return colour;
  }
  return getComputedStyle(document.body).backgroundColor;
};
const kinds = "h1, h2, .lead, .facts dt, .facts dd, .verdict, .verdict b, .badge, .brand, .legend, td, th, " +
  ".listing li b, .listing i, .listing em, .listing code, .listing span, .details dt, .details dd, .details button";
return Math.min(...[...document.querySelectorAll(kinds)].map((each) => {
  const [a, b] = [light(getComputedStyle(each).color), light(ground(each))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05);
}));
"""


def test_it_works_in_a_frame_of_a_notebook(chromium: Any, page: Path) -> None:
    chromium.get(page.with_name("frame.html").as_uri())
    chromium.switch_to.frame(one(chromium, "iframe"))
    all_of(chromium, '[data-graph="0"] .listing button')[0].click()
    assert one(chromium, ".details h4").text == "ids_BS"
    assert chromium.get_log("browser") == []


def test_a_picture_opens_by_itself(chromium: Any, page: Path) -> None:
    chromium.get(page.with_name("plan.svg").as_uri())
    assert len(all_of(chromium, "polygon")) > 30
    assert chromium.get_log("browser") == []


class Hostile(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict(
            {f"</script><script>{SIGN}</script><img src=x onerror={SIGN}>'&": nn.Embedding(9, 8)}
        )

    def forward(self, ids: Tensor) -> Tensor:
        (part,) = self.parts.values()
        return part(ids).relu()


SIGN = "hacked=1"


def test_names_are_no_code(chromium: Any, tmp_path: Path) -> None:
    """They are there to be read."""
    report = sp.inspect(Hostile(), (torch.zeros(1, 16, dtype=torch.long),), world_size=2)
    path = tmp_path / "page.html"
    report.to_html(path)
    chromium.get(path.as_uri())
    assert chromium.execute_script("return window.hacked") is None
    assert SIGN in one(chromium, "body").text
    assert not all_of(chromium, "img")
    assert len(all_of(chromium, "script")) == 2
    assert chromium.get_log("browser") == [], "nothing was so much as tried, for the policy to refuse"
