// A live cell: sliders set the sizes, the law runs in Brython, tables show what it gives.
"use strict";

// Brython compiles the law once, when the first cell wants an answer.
function law() {
  if (!window.answer) {
    __BRYTHON__.runPythonSource("import answer\nfrom browser import window\nwindow.answer = answer.answer", { name: "live" });
  }
  return window.answer;
}

function text(x) {
  return typeof x === "boolean" ? (x ? "✓" : "") : String(Math.round(x * 1e5) / 1e5);
}

// A number that stands in the first matrix keeps the colour of its row wherever it goes.
function table(name, rows, origin) {
  const made = document.createElement("table");
  made.createCaption().textContent = name;
  for (const row of rows) {
    const line = made.insertRow();
    for (const x of row) {
      const cell = line.insertCell();
      cell.textContent = text(x);
      cell.className = x === true ? "row0" : origin.has(x) ? `row${origin.get(x) % 6}` : "none";
    }
  }
  return made;
}

function originOf(rows) {
  const origin = new Map();
  rows.forEach((row, i) => row.forEach((x) => x !== 0 && typeof x === "number" && origin.set(x, i)));
  return origin;
}

function run(cell) {
  const sizes = {};
  for (const slider of cell.querySelectorAll("input")) {
    sizes[slider.name] = Number(slider.value);
    slider.nextElementSibling.textContent = slider.value;
  }
  const said = JSON.parse(law()(cell.querySelector("textarea").value, JSON.stringify(sizes)));
  const shown = cell.querySelector(".shown");
  const entries = Object.entries(said.show || {});
  const origin = entries.length ? originOf(entries[0][1]) : new Map();
  shown.replaceChildren(...entries.map(([name, rows]) => table(name, rows, origin)));
  cell.querySelector(".said").textContent = said.error || "";
  cell.dataset.answered = String(Number(cell.dataset.answered || 0) + 1);
}

for (const cell of document.querySelectorAll("form.live")) {
  cell.addEventListener("input", (event) => event.target.matches("input") && run(cell));
  cell.addEventListener("submit", (event) => {
    event.preventDefault();
    run(cell);
  });
  new IntersectionObserver((seen, observer) => {
    if (seen.some((entry) => entry.isIntersecting)) {
      observer.disconnect();
      run(cell);
    }
  }).observe(cell);
}
