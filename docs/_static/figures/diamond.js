// Backward through a tower of two diamonds, y = f(f(x)) with f(x) = 0.5 tanh(x) + 0.5 x, one node at a time.
live("diamond", (figure) => {
  const half = { value: (v) => v / 2, slope: () => 0.5 };
  const tanh = { value: Math.tanh, slope: (v) => 1 - Math.tanh(v) ** 2 };
  const plus = { value: (a, b) => a + b, slope: () => 1 };
  // the operations in the order of forward: name, operation, parents
  const graph = [
    ["tanh1", tanh, ["x"]], ["a1", half, ["tanh1"]], ["b1", half, ["x"]], ["h", plus, ["a1", "b1"]],
    ["tanh2", tanh, ["h"]], ["a2", half, ["tanh2"]], ["b2", half, ["h"]], ["y", plus, ["a2", "b2"]],
  ];
  const parents = { x: [] }, value = { x: 0.5 }, slopes = {}, consumers = { x: 0 };
  for (const [name, operation, from] of graph) {
    const inputs = from.map((parent) => value[parent]);
    [parents[name], value[name], consumers[name]] = [from, operation.value(...inputs), 0];
    slopes[name] = inputs.map(operation.slope);
    for (const parent of from) consumers[parent]++;
  }

  // The order in which nodes run: each after all of its consumers, or as soon as a walk finds it.
  function order(early) {
    const stack = ["y"], found = [], waiting = { ...consumers };
    while (stack.length) {
      const node = stack.pop();
      if (found.includes(node)) continue;
      found.push(node);
      for (const parent of parents[node]) if (--waiting[parent] === 0 || early) stack.push(parent);
    }
    return found.filter((node) => node !== "x"); // a leaf does not run: it keeps what arrives
  }

  // The state after the first `steps` nodes have run: gradients, what was sent along each arrow, what came too late.
  function after(steps, early) {
    const gradient = { y: 1 }, sent = {}, late = new Set(), waiting = { ...consumers };
    const ran = order(early).slice(0, steps);
    for (const [i, node] of ran.entries())
      parents[node].forEach((parent, j) => {
        const edge = `${node}-${parent}`, g = gradient[node] * slopes[node][j];
        sent[edge] = g;
        waiting[parent]--;
        if (ran.slice(0, i).includes(parent)) late.add(edge);
        else gradient[parent] = (gradient[parent] ?? 0) + g;
      });
    return { gradient, sent, late, waiting, ran };
  }

  const part = (kind, name) => figure.querySelector(`[data-${kind}="${name}"]`);
  const label = (name) => part("node", name).querySelector("text").textContent;
  const number = (g) => g.toFixed(4);
  const [back, step, reset] = ["back", "step", "reset"].map((name) => figure.querySelector(`[name=${name}]`));
  const isEarly = () => figure.querySelector("[name=diamond-order]:checked").value === "early";
  const end = graph.length, right = after(end, false).gradient.x;
  let steps = 0;

  function sentence({ gradient, sent, late, ran }) {
    if (!steps) return "Backward starts at y, whose gradient is 1.";
    const node = ran[steps - 1], before = after(steps - 1, isEarly());
    const said = parents[node].map((parent) => {
      const edge = `${node}-${parent}`;
      return `${number(sent[edge])} to ${label(parent)}${late.has(edge) ? ", too late: it is lost" : ""}`;
    });
    const how = before.waiting[node] ? "runs too early, with one gradient still to come" : "runs";
    const judged = gradient.x === right ? "the right gradient" : `and should be ${number(right)}`;
    const last = steps < end ? "" : ` Finished: dy/dx is ${number(gradient.x)}, ${judged}.`;
    return `${label(node)} ${how}. It sends ${said.join(" and ")}.${last}`;
  }

  function draw() {
    const now = after(steps, isEarly());
    for (const node of Object.keys(parents)) {
      const box = part("node", node), [, g, count] = box.querySelectorAll("text");
      g.textContent = node in now.gradient ? `g = ${number(now.gradient[node])}` : "";
      count.textContent = now.waiting[node];
      const ran = now.ran.indexOf(node), early = ran >= 0 && after(ran, isEarly()).waiting[node] > 0;
      box.setAttribute("class", early ? "early" : ran >= 0 ? "ran" : now.waiting[node] ? "" : "free");
      for (const parent of parents[node]) {
        const edge = `${node}-${parent}`, arrow = part("edge", edge);
        arrow.querySelector("text").textContent = edge in now.sent ? number(now.sent[edge]) : "";
        arrow.setAttribute("class", now.late.has(edge) ? "late" : edge in now.sent ? "sent" : "");
      }
    }
    figure.querySelector(".status").textContent = sentence(now);
    // not `disabled`, which would take the focus away from a button at the end
    for (const button of [back, reset]) button.setAttribute("aria-disabled", steps === 0);
    step.setAttribute("aria-disabled", steps === end);
  }

  const move = (to) => () => {
    steps = Math.min(Math.max(to(), 0), end);
    draw();
  };
  step.addEventListener("click", move(() => steps + 1));
  back.addEventListener("click", move(() => steps - 1));
  reset.addEventListener("click", move(() => 0));
  figure.addEventListener("input", move(() => 0));
  draw();
});
