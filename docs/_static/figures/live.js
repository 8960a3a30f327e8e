// What the interactive figures share. A figure is <figure class="live" data-figure="NAME">, which NAME.js makes live.
// Without JavaScript it shows its first state or a picture (class "still") and no controls.

// Call start(figure, data) for every figure of a name. The data are JSON in the figure, if there are any.
function live(name, start) {
  for (const figure of document.querySelectorAll(`.live[data-figure="${name}"]`)) {
    const data = figure.querySelector("script[type='application/json']");
    start(figure, data && JSON.parse(data.textContent));
    figure.classList.add("ready");
  }
}

// Add a slider over frames 0 to last, a Play button and a line of status. show(frame) draws a frame and returns the
// text of that line. Where motion is to be reduced, there is no Play button.
function player(figure, label, last, show, milliseconds = 500) {
  const controls = document.createElement("div"), status = document.createElement("p");
  controls.className = "controls";
  controls.innerHTML = `<button type="button">Play</button>
    <label class="player">${label} <input type="range" min="0" max="${last}" value="0"></label>`;
  status.className = "status";
  figure.prepend(controls, status);
  const [play, slider] = controls.querySelectorAll("button, input");
  let timer = null;

  function go(frame) {
    slider.value = frame;
    status.textContent = show(frame);
    slider.setAttribute("aria-valuetext", status.textContent);
  }
  function pause() {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    status.setAttribute("aria-live", "polite");
  }
  function next() {
    go(Number(slider.value) + 1);
    if (Number(slider.value) === last) pause();
  }
  slider.addEventListener("input", () => {
    pause();
    go(Number(slider.value));
  });
  play.addEventListener("click", () => {
    if (timer !== null) return pause();
    if (Number(slider.value) === last) go(0);
    play.textContent = "Pause";
    status.setAttribute("aria-live", "off"); // a screen reader need not tell every frame
    timer = setInterval(next, milliseconds);
  });
  play.hidden = matchMedia("(prefers-reduced-motion: reduce)").matches;
  pause();
  go(0);
}
