// A browser without a locale, as in many containers, reports the language "en-US@posix". uPlot would fail when it is
// loaded, because it creates a number format for this language.
try {
  Intl.getCanonicalLocales(navigator.language);
} catch {
  Object.defineProperty(navigator, "language", { value: "en-US" });
}
