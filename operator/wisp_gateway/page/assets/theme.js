// Sets the chosen colours before the first paint: "light", "dark", or nothing for the system's.
(function () {
  try {
    const chosen = localStorage.getItem("wisp.theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that keeps nothing follows the system.
  }
})();
