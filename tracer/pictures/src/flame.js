// Zooms and finds. This text has no "less than" and no ampersand, because it stands in SVG.
(function () {
  "use strict";
  var svg = document.currentScript.closest("svg");
  var WIDTH = 1180, MARGIN = 10, LETTER = 7.2, NS = "http://www.w3.org/2000/svg";
  var total = Number(svg.dataset.total) || 1;
  var found = svg.querySelector(".found");
  var boxes = Array.from(svg.querySelectorAll("g")).map(function (group) {
    var title = group.querySelector("title").textContent;
    var text = group.querySelector("text");
    if (!text) {
      text = document.createElementNS(NS, "text");
      text.setAttribute("y", Number(group.querySelector("rect").getAttribute("y")) + 13);
      group.appendChild(text);
    }
    return {
      group: group, rect: group.querySelector("rect"), text: text,
      x: Number(group.dataset.x), w: Number(group.dataset.w), depth: Number(group.dataset.d),
      name: title.slice(0, title.lastIndexOf(" (")), short: group.dataset.s
    };
  });

  function label(box, width) {
    var letters = Math.floor(Math.max(0, width - 8) / LETTER);
    if (letters >= Array.from(box.name).length) return box.name;
    var short = Array.from(box.short);
    if (letters >= short.length) return box.short;
    return 3 > letters ? "" : short.slice(0, letters - 1).join("") + "\u2026";
  }

  function zoom(to) {
    boxes.forEach(function (box) {
      // A box under the chosen one holds it, and takes the whole width.
      var under = to.depth > box.depth;
      var left = Math.max(box.x, to.x), right = Math.min(box.x + box.w, to.x + to.w);
      var part = right > left ? (right - left) / to.w : 0;
      box.group.style.display = part > 0 ? "" : "none";
      box.group.classList.toggle("under", under);
      var x = MARGIN + (left - to.x) / to.w * WIDTH, width = part * WIDTH;
      box.rect.setAttribute("x", x);
      box.rect.setAttribute("width", Math.max(width - 0.5, Math.min(width, 0.5)));
      box.text.setAttribute("x", x + 4);
      box.text.textContent = label(box, width);
    });
  }

  function find(part) {
    var matches = boxes.filter(function (box) {
      var match = part !== "" ? box.name.toLowerCase().includes(part.toLowerCase()) : false;
      box.group.classList.toggle("match", match);
      return match;
    });
    // A function in one of its own callees counts once.
    matches.sort(function (a, b) { return a.x - b.x || a.depth - b.depth; });
    var end = 0, sum = 0;
    matches.forEach(function (box) {
      if (box.x + box.w > end) { sum += box.x + box.w - Math.max(end, box.x); end = box.x + box.w; }
    });
    found.textContent = part === "" ? "" : (sum * 100 / total).toFixed(1) + " % found";
  }

  boxes.forEach(function (box) {
    box.group.addEventListener("click", function () { zoom(box); });
  });
  svg.querySelector(".back").addEventListener("click", function () { zoom(boxes[0]); });
  var field = document.createElementNS(NS, "foreignObject");
  [["x", 890], ["y", 9], ["width", 190], ["height", 28]].forEach(function (pair) {
    field.setAttribute(pair[0], pair[1]);
  });
  var input = document.createElementNS("http://www.w3.org/1999/xhtml", "input");
  input.setAttribute("placeholder", "Find a function");
  input.addEventListener("input", function () { find(input.value); });
  field.appendChild(input);
  svg.appendChild(field);
})();
