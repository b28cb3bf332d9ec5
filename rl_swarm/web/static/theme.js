// Runs before the page is drawn, so that it does not flash in the wrong colours.
(() => {
  const wanted = localStorage.getItem("rl-swarm-theme");
  if (wanted === "light" || wanted === "dark") document.documentElement.dataset.theme = wanted;
})();
