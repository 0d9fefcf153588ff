// A live cell: sliders set the sizes, the specification runs in Brython, tables show what it gives.
"use strict";

// Brython compiles the specification once, when the first cell wants an answer.
function loadAnswer() {
  if (!window.answer) {
    __BRYTHON__.runPythonSource("import answer\nfrom browser import window\nwindow.answer = answer.answer", { name: "live" });
  }
  return window.answer;
}

function text(x) {
  if (typeof x === "string") return x;
  return typeof x === "boolean" ? (x ? "✓" : "") : String(Math.round(x * 1e3) / 1e3);
}

// Blue above zero, orange below it, stronger the larger it is; what is no number is grey.
function shade(x, largest) {
  if (typeof x === "string") return "#eceff3";
  const share = largest ? Math.round((100 * Math.abs(x)) / largest) : 0;
  return `color-mix(in srgb, ${x < 0 ? "#ffb27d" : "#8fc7ff"} ${share}%, #eceff3)`;
}

// A number of a matrix that others come from keeps the colour of its row wherever it goes; elsewhere its size gives the shade.
function table(name, rows, origin) {
  const made = document.createElement("table");
  const largest = Math.max(0, ...rows.flat().filter((x) => typeof x !== "string").map(Math.abs));
  made.createCaption().textContent = name;
  for (const row of rows) {
    const line = made.insertRow();
    for (const x of row) {
      const cell = line.insertCell();
      cell.textContent = text(x);
      if (origin.size) cell.className = origin.has(x) ? `row${origin.get(x) % 6}` : "none";
      else cell.style.background = shade(x, largest);
    }
  }
  return made;
}

const FOLLOWED = ["before", "memory", "segment"];

function originOf(show) {
  const origin = new Map();
  let colour = 0;
  for (const name of FOLLOWED.filter((name) => name in show)) {
    for (const row of show[name]) {
      row.forEach((x) => origin.set(x, colour));
      colour += 1;
    }
  }
  return origin;
}

function run(cell) {
  const sizes = {};
  for (const slider of cell.querySelectorAll("input")) {
    sizes[slider.name] = Number(slider.value);
    slider.nextElementSibling.textContent = slider.value;
  }
  const said = JSON.parse(loadAnswer()(cell.querySelector("textarea").value, JSON.stringify(sizes)));
  const shown = cell.querySelector(".shown");
  const origin = originOf(said.show || {});
  const tables = Object.entries(said.show || {}).map(([name, rows]) => table(name, rows, origin));
  shown.replaceChildren(...tables, ...picturesOf(said.show || {}));
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
