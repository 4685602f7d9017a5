(() => {
  "use strict";
  const live = document.getElementById("said");
  const value = (row, index) => {
    const cell = row.cells[index];
    const given = cell.getAttribute("data-v");
    if (given !== null) return given === "" ? null : Number(given);
    const text = cell.textContent.trim();
    return text.startsWith("\u2014") ? null : text.toLowerCase();
  };
  const compare = (a, b) => (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b)));
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, index) => {
      const button = document.createElement("button");
      button.type = "button";
      while (head.firstChild) button.appendChild(head.firstChild);
      head.appendChild(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        const rows = Array.from(table.tBodies[0].rows);
        rows.sort((first, second) => {
          const a = value(first, index);
          const b = value(second, index);
          if (a === null || b === null) return (a === null) - (b === null);
          return down ? compare(b, a) : compare(a, b);
        });
        table.tBodies[0].append(...rows);
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        live.textContent = `Sorted by ${button.firstElementChild.textContent}, ${down ? "descending" : "ascending"}.`;
      });
    });
  }
  const folds = Array.from(document.querySelectorAll("details.checkpoint"));
  if (folds.length > 1) {
    const all = document.createElement("button");
    all.type = "button";
    all.className = "all";
    const name = () => { all.textContent = folds.every((fold) => fold.open) ? "Close all checkpoints" : "Open all checkpoints"; };
    all.addEventListener("click", () => {
      const open = !folds.every((fold) => fold.open);
      folds.forEach((fold) => { fold.open = open; });
      name();
    });
    folds.forEach((fold) => fold.addEventListener("toggle", name));
    name();
    folds[0].before(all);
  }
  const reveal = () => {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    const fold = target.closest("details") || target.querySelector("details");
    if (fold && !fold.open) { fold.open = true; target.scrollIntoView(); }
  };
  addEventListener("hashchange", reveal);
  reveal();
})();
