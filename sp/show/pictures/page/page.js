"use strict";
// Everything that is shown is set as text, never as HTML: names come from other people's models.
(() => {
  const rows = JSON.parse(document.getElementById("data").textContent);
  const details = document.querySelector(".details");

  // The slider: all steps, or what one step computes, with what was computed before it behind.
  for (const plan of document.querySelectorAll(".plan")) {
    const slider = plan.querySelector(".step");
    const name = plan.querySelector(".step-name");
    const play = plan.querySelector(".play");
    const names = JSON.parse(name.dataset.names);
    const parts = [...plan.querySelectorAll("[data-step]")];
    let timer = 0;
    const show = () => {
      const step = Number(slider.value);
      plan.classList.toggle("stepping", step >= 0);
      for (const part of parts) {
        part.classList.toggle("before", step >= 0 && Number(part.dataset.step) < step);
        part.classList.toggle("later", step >= 0 && Number(part.dataset.step) > step);
      }
      name.textContent = step < 0 ? "all steps" : names[step];
      slider.setAttribute("aria-valuetext", name.textContent);
    };
    const stop = () => {
      clearInterval(timer);
      timer = 0;
      play.textContent = "play";
      play.setAttribute("aria-pressed", "false");
    };
    slider.addEventListener("input", () => { stop(); show(); });
    play.addEventListener("click", () => {
      if (timer) return stop();
      play.textContent = "stop";
      play.setAttribute("aria-pressed", "true");
      timer = setInterval(() => {
        slider.value = Number(slider.value) >= Number(slider.max) ? -1 : Number(slider.value) + 1;
        show();
      }, 900);
    });
    for (const view of plan.querySelectorAll(".views input")) {
      view.addEventListener("change", () => { plan.dataset.view = view.value; });
    }
  }

  // The graph: a row that is chosen shows its neighbours and its reasons.
  const make = (tag, text, kind) => {
    const made = document.createElement(tag);
    made.textContent = text;
    if (kind) made.className = kind;
    return made;
  };
  const button = (graph, row) => document.querySelector(`[data-graph="${graph}"] button[data-row="${row}"]`);
  const readers = rows.map((graph) => {
    const found = graph.map(() => []);
    graph.forEach((row, number) => row[8].forEach((source) => found[source].push(number)));
    return found;
  });
  const links = (graph, numbers) => {
    const list = document.createElement("dd");
    for (const number of numbers) {
      const link = make("button", rows[graph][number][0]);
      link.type = "button";
      link.addEventListener("click", () => { choose(graph, number); button(graph, number).focus(); });
      list.append(link);
    }
    return list;
  };
  const describe = (graph, number) => {
    const [name, kind, type, placement, call, why, source, path, reads] = rows[graph][number];
    const list = document.createElement("dl");
    const add = (term, text, mark) => { if (text) list.append(make("dt", term), make("dd", text, mark)); };
    add("why", why || (kind === "gone" ? "no value of this kind is left after the passes" : ""), "why");
    add("placement", placement);
    add("type, of the whole value", type);
    add("computed as", call);
    add("module", path);
    add("source", source);
    if (reads.length) list.append(make("dt", "reads"), links(graph, reads));
    if (readers[graph][number].length) list.append(make("dt", "read by"), links(graph, readers[graph][number]));
    details.replaceChildren(make("h4", name), list);
  };
  // The same value in the other graph: of the same name, or the attention that stands for this one.
  const twinOf = (graph, number) => {
    const [name, kind] = rows[graph][number];
    const others = rows[1 - graph];
    if (kind !== "attention") return others.findIndex((row) => row[0] === name && row[1] !== "open" && row[1] !== "close");
    const place = rows[graph].slice(0, number).filter((row) => row[1] === "attention").length;
    return others.findIndex((row, at) => row[1] === "attention" && others.slice(0, at).filter((each) => each[1] === "attention").length === place);
  };
  const show = (found) => {
    const frame = found.closest(".scroll");
    const top = found.getBoundingClientRect().top - frame.getBoundingClientRect().top;
    if (top < 0 || top > frame.clientHeight - 30) frame.scrollTop += top - frame.clientHeight / 2;
  };
  const choose = (graph, number) => {
    document.querySelectorAll(".chosen, .reads, .readers, .twin").forEach((each) => each.classList.remove("chosen", "reads", "readers", "twin"));
    document.querySelectorAll(".edge.on, .edge.off").forEach((each) => each.classList.remove("on", "off"));
    const mark = (row, kind, where = graph) => { const found = button(where, row); if (found) found.parentElement.classList.add(kind); };
    mark(number, "chosen");
    rows[graph][number][8].forEach((row) => mark(row, "reads"));
    readers[graph][number].forEach((row) => mark(row, "readers"));
    const twin = twinOf(graph, number);
    if (twin >= 0) {
      mark(twin, "twin", 1 - graph);
      show(button(1 - graph, twin));
    }
    const svg = document.querySelector(`[data-graph="${graph}"] svg`);
    svg.querySelectorAll(`[data-to="${number}"]`).forEach((each) => each.classList.add("on"));
    svg.querySelectorAll(`[data-from="${number}"]`).forEach((each) => each.classList.add("off"));
    describe(graph, number);
  };
  const zoom = document.getElementById("zoom");
  zoom.addEventListener("input", () => {
    for (const listing of document.querySelectorAll(".listing")) listing.style.zoom = `${zoom.value}%`;
  });
  for (const graph of document.querySelectorAll(".graph")) {
    const number = Number(graph.dataset.graph);
    const buttons = [...graph.querySelectorAll(".listing button")];
    graph.addEventListener("click", (event) => {
      const row = event.target.closest(".listing button");
      if (row) choose(number, Number(row.dataset.row));
    });
    graph.addEventListener("keydown", (event) => {
      const at = buttons.indexOf(event.target);
      const to = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: buttons.length - 1 }[event.key];
      if (at < 0 || to === undefined || !buttons[to]) return;
      event.preventDefault();
      buttons[at].tabIndex = -1;
      buttons[to].tabIndex = 0;
      buttons[to].focus();
      choose(number, Number(buttons[to].dataset.row));
    });
  }
  // To begin with: the first attention of the rewritten graph.
  const first = rows[1].findIndex((row) => row[1] === "attention");
  if (first >= 0) {
    show(button(1, first));
    choose(1, first);
  }
})();
