// The maps of the mistakes, and the film.

const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

// Draw map number i of packed maps, whose values go from 0 to 255.
function drawMap(canvas, maps, i) {
  [canvas.width, canvas.height] = [columns, rows];
  draw(canvas, Array.from(maps.subarray(i * patches, (i + 1) * patches), (v) => [...colour(v / 255, scale), 255]));
}

if (numbers.mistakes) {
  const maps = bytes(numbers.mistakes);
  document.querySelectorAll("#mistakes canvas").forEach((canvas, i) => drawMap(canvas, maps, i));
}

if (numbers.film) {
  const { epochs, guesses, probabilities, labels, names } = numbers.film;
  const maps = bytes(numbers.film.maps), last = epochs.length - 1;
  const figures = [...document.querySelectorAll("#film figure")];
  const slider = byId("frame"), play = byId("play"), status = byId("film-status");
  let timer = null;

  const show = (frame) => {
    slider.value = frame;
    slider.setAttribute("aria-valuetext", `epoch ${epochs[frame]}`);
    byId("epoch").textContent = `${epochs[frame]} of ${numbers.film.last}`;
    const right = labels.filter((label, i) => guesses[frame][i] === label).length;
    const when = epochs[frame] ? `After epoch ${epochs[frame]}` : "Before training";
    status.textContent = `${when}: ${right} of ${labels.length} correct.`;
    figures.forEach((figure, i) => {
      drawMap(figure.querySelector("canvas"), maps, frame * labels.length + i);
      const guess = guesses[frame][i], kind = guess === labels[i] ? "correct" : "wrong";
      figure.querySelector(".guess").textContent = `${names[guess]} ${(100 * probabilities[frame][i]).toFixed(1)}%`;
      figure.querySelector(".verdict").textContent = kind;
      figure.querySelector(".verdict").className = `verdict ${kind}`;
    });
  };

  const pause = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
    status.setAttribute("aria-live", "polite");
  };

  // From the beginning, if the film is at its end; screen readers are not told every frame.
  const start = () => {
    if (Number(slider.value) === last) show(0);
    play.textContent = "Pause";
    status.setAttribute("aria-live", "off");
    timer = setInterval(() => {
      show(Math.min(Number(slider.value) + 1, last));
      if (Number(slider.value) === last) pause();
    }, Math.min(Math.max(8000 / (last + 1), 100), 700));
  };

  play.addEventListener("click", () => (timer === null ? start() : pause()));
  slider.addEventListener("input", () => {
    pause();
    show(Number(slider.value));
  });
  byId("film").addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step || event.target === slider) return;
    event.preventDefault();
    pause();
    show(Math.min(Math.max(Number(slider.value) + step, 0), last));
  });
  show(last);
}
document.body.dataset.ready = "";
