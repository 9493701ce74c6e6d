(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("slider-data").textContent);
  const control = document.getElementById("control");
  const slider = document.getElementById("temperature");
  const said = document.getElementById("said");
  const dot = document.querySelector("#slider-dot use");
  const line = document.querySelector("#slider-line path");
  const curve = document.querySelector("#slider-curve path");

  const show = () => {
    const i = Number(slider.value);
    const [x, y] = data.dots[i];
    dot.setAttribute("x", x);
    dot.setAttribute("y", y);
    line.setAttribute("d", line.getAttribute("d").replace(/([ML]) ?[-\d.]+/g, "$1 " + x));
    curve.setAttribute("d", data.paths[i]);
    said.textContent = data.words[i] + (i === data.chosen ? " (chosen)." : ".");
    slider.setAttribute("aria-valuetext", data.words[i]);
  };

  slider.addEventListener("input", show);
  document.getElementById("back").addEventListener("click", () => {
    slider.value = data.chosen;
    show();
  });
  slider.value = data.chosen;
  show();
  control.hidden = false;
})();
