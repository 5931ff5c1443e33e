// Adds the secret of this browser to forms that change something.
// Browsers send cookies to every port of a host, and keep this storage for one port only.
"use strict";
(() => {
  const NAME = "lifesign_browser_secret", BYTES = 32;
  const browserSecret = () => {
    try {
      const stored = localStorage.getItem(NAME);
      if (stored) return stored;
      const bytes = crypto.getRandomValues(new Uint8Array(BYTES));
      const created = Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
      localStorage.setItem(NAME, created);
      return created;
    } catch {
      return ""; // Storage is off: the pages ask for the key instead.
    }
  };
  document.addEventListener("formdata", ({ target, formData }) => {
    // A form with GET would put the secret into the URL.
    if (target.getAttribute("method") === "post") formData.set("browser_secret", browserSecret());
  });
})();
