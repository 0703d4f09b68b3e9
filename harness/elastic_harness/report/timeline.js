"use strict";
// Zoom and pan of the drawing, a cursor with what was said around it, and the proofs of clauses.
// All text is set with textContent: nothing of a log is ever taken for markup.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const svg = document.getElementById("drawing");
  const near = document.getElementById("near");
  const ticks = document.getElementById("ticks");
  const cursor = document.getElementById("cursor");
  const marks = document.getElementById("marks");
  const plotWidth = data.width - data.labels;
  const aroundCursor = 2; // seconds before and after it
  const mostLines = 400;
  const shortest = 0.001;
  let from = 0;
  let to = data.length;
  let cursorAt = null;
  let proofTimes = [];

  const xOf = (time) => data.labels + ((time - from) / (to - from)) * plotWidth;
  const timeOf = (x) => from + ((x - data.labels) / plotWidth) * (to - from);
  const element = (name, values) => {
    const made = document.createElementNS(svg.namespaceURI, name);
    for (const [key, value] of Object.entries(values)) made.setAttribute(key, value);
    return made;
  };

  // What the page drew for the whole run, in seconds.
  const number = (item, name) => Number(item.getAttribute(name));
  const shapes = [...svg.querySelectorAll("#plot rect")];
  // Names of ranks are drawn after all boxes, so that no step hides them.
  const lanes = shapes.filter((item) => !item.matches(".round, .fault"));
  const named = new Map();
  for (const text of svg.querySelectorAll("#plot text[data-box]")) {
    named.set(lanes[Number(text.dataset.box)], text);
  }
  const boxes = shapes.map((item) => {
    const next = item.nextElementSibling;
    const text = named.get(item) ?? (next?.matches("text:not([data-box])") ? next : null);
    const start = timeOf(number(item, "x"));
    const end = timeOf(number(item, "x") + number(item, "width"));
    const least = item.classList.contains("step") ? 0.5 : 2;
    const room = named.has(item) ? 44 : 0;
    return { item, text, start, end, least, room };
  });

  function drawTicks() {
    const length = to - from;
    let step = 0.00001;
    let parts = 5;
    search: for (let power = -5; power < 9; power++) {
      for (const factor of [1, 2, 5]) {
        step = factor * 10 ** power;
        parts = factor === 2 ? 4 : 5;
        if (length <= 25 * step) break search;
      }
    }
    const small = step / parts;
    const places = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
    const drawn = [];
    for (let i = Math.ceil(from / small - 1e-9); i * small <= to + 1e-9; i++) {
      const x = xOf(i * small).toFixed(1);
      const isLabelled = i % parts === 0;
      const height = svg.viewBox.baseVal.height;
      const ends = isLabelled ? { y1: 20, y2: height } : { y1: 34, y2: 40 };
      drawn.push(element("line", { class: "tick", x1: x, x2: x, ...ends }));
      if (!isLabelled) continue;
      const label = element("text", { class: "tick-label", x: Number(x) + 3, y: 14 });
      label.textContent = `${Number((i * small).toFixed(places))} s`;
      drawn.push(label);
    }
    ticks.replaceChildren(...drawn);
  }

  function redraw() {
    for (const { item, text, start, end, least, room } of boxes) {
      const x = xOf(start);
      const width = Math.max(xOf(end) - x, least);
      item.setAttribute("x", x.toFixed(2));
      item.setAttribute("width", width.toFixed(2));
      if (text === null) continue;
      const left = Math.max(x, data.labels);
      text.setAttribute("x", (left + 3).toFixed(1));
      const isShown = x + width > data.labels && x < data.width && x + width - left >= room;
      text.setAttribute("visibility", isShown ? "visible" : "hidden");
    }
    const line = (time, kind) => {
      const x = xOf(time).toFixed(1);
      return element("line", { class: kind, x1: x, x2: x, y1: 20, y2: svg.viewBox.baseVal.height });
    };
    cursor.replaceChildren(...(cursorAt === null ? [] : [line(cursorAt, "cursor")]));
    marks.replaceChildren(...proofTimes.map((time) => line(time, "proof")));
    drawTicks();
  }

  function show(start, end) {
    const length = Math.min(Math.max(end - start, shortest), data.length);
    from = Math.min(Math.max(start, 0), data.length - length);
    to = from + length;
    redraw();
  }

  function zoom(factor, around) {
    const middle = around ?? cursorAt ?? (from + to) / 2;
    const length = Math.min(Math.max((to - from) * factor, shortest), data.length);
    const left = middle - ((middle - from) / (to - from)) * length;
    show(left, left + length);
  }

  function row(cells) {
    const made = document.createElement("tr");
    for (const [text, kind] of cells) {
      const cell = document.createElement("td");
      cell.textContent = text;
      if (kind) cell.className = kind;
      made.append(cell);
    }
    return made;
  }

  function setCursor(time) {
    cursorAt = Math.min(Math.max(time, 0), data.length);
    const inside = data.lines.filter(([at]) => Math.abs(at - cursorAt) <= aroundCursor);
    inside.sort((one, other) => one[0] - other[0]);
    // Of too many, those closest to the cursor.
    const distance = ([at]) => Math.abs(at - cursorAt);
    const chosen = new Set([...inside].sort((a, b) => distance(a) - distance(b)).slice(0, mostLines));
    const title = document.createElement("h2");
    title.textContent = `${cursorAt.toFixed(3)} s, and 2 s before and after`;
    const table = document.createElement("table");
    for (const line of inside) {
      if (!chosen.has(line)) continue;
      const [at, who, text, kind] = line;
      table.append(row([[at.toFixed(3), "number faint"], [who, "faint"], [text, kind]]));
    }
    near.replaceChildren(title, table);
    redraw();
  }

  // --- clauses and their proofs ----------------------------------------------------------------

  function showProof(clause) {
    const wasOpen = clause.getAttribute("aria-expanded") === "true";
    for (const other of document.querySelectorAll("tr.clause")) {
      other.setAttribute("aria-expanded", "false");
    }
    for (const old of document.querySelectorAll("tr.proof-row")) old.remove();
    proofTimes = [];
    if (!wasOpen) {
      clause.setAttribute("aria-expanded", "true");
      const table = document.createElement("table");
      for (const seq of clause.dataset.proof.split(",").filter(Boolean)) {
        const record = document.getElementById(`r${seq}`);
        if (record === null) {
          table.append(row([[seq, "faint"], ["not on this page: see history.jsonl", "faint"]]));
          continue;
        }
        proofTimes.push(Number(record.cells[1].textContent));
        const copy = record.cloneNode(true);
        copy.removeAttribute("id");
        table.append(copy);
      }
      if (!table.rows.length) table.append(row([["no single record proves it", "faint"]]));
      const holder = document.createElement("tr");
      holder.className = "proof-row";
      const cell = document.createElement("td");
      cell.colSpan = 4;
      cell.append(table);
      holder.append(cell);
      clause.after(holder);
    }
    redraw();
  }

  for (const clause of document.querySelectorAll("tr.clause")) {
    clause.tabIndex = 0;
    clause.setAttribute("aria-expanded", "false");
    clause.addEventListener("click", () => showProof(clause));
    clause.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      showProof(clause);
    });
  }

  // --- mouse and keyboard ----------------------------------------------------------------------

  const eventX = (event) => {
    const place = svg.getBoundingClientRect();
    return ((event.clientX - place.left) / place.width) * data.width;
  };
  let drag = null;
  svg.addEventListener("pointerdown", (event) => {
    drag = { x: eventX(event), from, to, hasMoved: false };
  });
  window.addEventListener("pointermove", (event) => {
    if (drag === null) return;
    const moved = eventX(event) - drag.x;
    if (Math.abs(moved) > 4) drag.hasMoved = true;
    if (!drag.hasMoved) return;
    const seconds = (moved / plotWidth) * (drag.to - drag.from);
    show(drag.from - seconds, drag.to - seconds);
  });
  window.addEventListener("pointerup", () => {
    if (drag !== null && !drag.hasMoved && drag.x >= data.labels) setCursor(timeOf(drag.x));
    drag = null;
  });
  // A page that zooms where one wants to scroll is a trap: the drawing has to have the focus.
  svg.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && document.activeElement !== svg) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, timeOf(eventX(event)));
  }, { passive: false });
  svg.addEventListener("dblclick", (event) => zoom(0.5, timeOf(eventX(event))));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const length = to - from;
    const tenth = event.shiftKey ? length / 100 : length / 10;
    const acts = {
      "+": () => zoom(0.5),
      "=": () => zoom(0.5),
      "-": () => zoom(2),
      "0": () => show(0, data.length),
      "ArrowLeft": () => show(from - tenth, to - tenth),
      "ArrowRight": () => show(from + tenth, to + tenth),
      ",": () => setCursor((cursorAt ?? from) - length / 100),
      ".": () => setCursor((cursorAt ?? from) + length / 100),
    };
    if (!(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  });

  // `timeline.html#t=3.2&from=2&to=5&clause=1` opens the page at a place.
  function goTo() {
    const asked = new URLSearchParams(location.hash.slice(1));
    const value = (name) => (asked.has(name) ? Number(asked.get(name)) : NaN);
    if (value("to") > value("from")) show(value("from"), value("to"));
    if (Number.isFinite(value("t"))) setCursor(value("t"));
    const clause = document.querySelectorAll("tr.clause")[value("clause") - 1];
    if (clause && clause.getAttribute("aria-expanded") !== "true") showProof(clause);
  }
  document.getElementById("keys").hidden = false;
  window.addEventListener("hashchange", goTo);
  redraw();
  goTo();
})();
