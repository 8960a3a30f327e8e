// Softmax of six scores at a temperature.
live("softmax", (figure) => {
  const rows = [...figure.querySelectorAll("li")], scores = rows.map((row) => row.querySelector("input"));
  const slider = figure.querySelector("[name=temperature]"); // its value is log2 of the temperature
  const write = (name, text) => (figure.querySelector(`[data-out=${name}]`).textContent = text);
  let temperature = Number(figure.dataset.temperature);

  function draw() {
    const scaled = scores.map((score) => score.value / temperature), top = Math.max(...scaled);
    const powers = scaled.map((score) => Math.exp(score - top)), sum = powers.reduce((a, b) => a + b);
    const weights = powers.map((power) => power / sum), largest = Math.max(...weights);
    const entropy = -weights.reduce((total, w) => total + (w && w * Math.log2(w)), 0);
    rows.forEach((row, i) => {
      row.style.setProperty("--weight", weights[i]);
      row.querySelector("output").textContent = scores[i].value.replace("-", "−");
      row.querySelector("b").textContent = weights[i].toFixed(3);
    });
    write("temperature", temperature.toFixed(2));
    write("largest", largest.toFixed(3));
    write("entropy", Math.abs(entropy).toFixed(2));
    write("slope", (largest * (1 - largest)).toFixed(3));
    slider.setAttribute("aria-valuetext", temperature.toFixed(2));
  }

  slider.addEventListener("input", () => (temperature = 2 ** slider.value));
  figure.addEventListener("input", draw);
  for (const button of figure.querySelectorAll("button"))
    button.addEventListener("click", () => {
      temperature = Number(button.dataset.temperature);
      slider.value = Math.log2(temperature);
      draw();
    });
  draw();
});
