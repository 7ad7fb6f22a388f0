"use strict";
// Selects rows by the filters, in charts and tables alike, and sorts tables.

const form = document.getElementById("filters");
const lines = [...document.querySelectorAll("tr[data-row]")];
const drawn = [...document.querySelectorAll("[data-row]")];
const panels = [...document.querySelectorAll(".panel")];

// An element of SVG has no `hidden` of its own: the attribute serves both.
function show(element, shown) {
  element.toggleAttribute("hidden", !shown);
}

function update() {
  const chosen = [...form.querySelectorAll("select")].filter((select) => select.value);
  const kept = lines.filter((line) => chosen.every(({ name, value }) => line.dataset[name] === value));
  const numbers = new Set(kept.map((line) => line.dataset.row));
  for (const each of drawn) show(each, numbers.has(each.dataset.row));
  for (const panel of panels) show(panel, panel.querySelector("[data-row]:not([hidden])") !== null);
  document.getElementById("count").textContent = `${kept.length} of ${lines.length} rows`;
}

// Sorting is stable, by value; rows without one come last either way.
const words = new Intl.Collator("en", { numeric: true });

function valueOf(line, at, numeric) {
  const cell = line.cells[at];
  if (!numeric) return (cell.querySelector("summary") ?? cell).textContent;
  return cell?.dataset.value === undefined ? null : Number(cell.dataset.value);
}

function sort(heading) {
  const up = heading.getAttribute("aria-sort") !== "ascending";
  const numeric = heading.classList.contains("number");
  const at = heading.cellIndex;
  const body = heading.closest("table").tBodies[0];
  for (const each of heading.parentElement.cells) each.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", up ? "ascending" : "descending");
  const sorted = [...body.rows].sort((a, b) => {
    const [one, other] = [valueOf(a, at, numeric), valueOf(b, at, numeric)];
    if (one === null || other === null) return (one === null) - (other === null);
    const way = numeric ? one - other : words.compare(one, other);
    return up ? way : -way;
  });
  body.append(...sorted);
}

for (const heading of document.querySelectorAll("th[aria-sort]")) {
  heading.firstElementChild.addEventListener("click", () => sort(heading));
}
form.addEventListener("change", update);
form.addEventListener("reset", () => setTimeout(update));
form.addEventListener("submit", (event) => event.preventDefault());

// Paper has no folds.
addEventListener("beforeprint", () => {
  for (const fold of document.querySelectorAll("details")) fold.open = true;
});

// The link to the table opens its first fold.
document.querySelector(".skip").addEventListener("click", () => {
  document.querySelector("details.operator").open = true;
});
