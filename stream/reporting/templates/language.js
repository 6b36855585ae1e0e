// A browser that runs without a locale, as in many containers, calls its language "en-US@posix". uPlot asks for the
// numbers of that language when it is loaded, and would be lost.
try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
