// Before anything is drawn: the colours that were chosen. No module, so that it runs at once.
(() => {
  const NAME = "umbel.theme";
  const root = document.documentElement;
  let chosen = "auto";
  try {
    chosen = localStorage.getItem(NAME) || chosen;
  } catch {
    // the system's, then
  }
  root.dataset.theme = ["light", "dark"].includes(chosen) ? chosen : "auto";

  window.umbelTheme = {
    get: () => root.dataset.theme,
    next() {
      const order = ["auto", "light", "dark"];
      root.dataset.theme = order[(order.indexOf(root.dataset.theme) + 1) % order.length];
      try {
        localStorage.setItem(NAME, root.dataset.theme);
      } catch {
        // for now, then
      }
      return root.dataset.theme;
    },
  };
})();
