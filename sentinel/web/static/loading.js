// What is shown of a part of the page whose data are under way, or could not be loaded.
import { button, container, element, errorMessage, setText } from "./dom.js";

const LOADING_RETRY_MS = [2000, 5000, 15000, 30000];

/**
 * A line that states that data are loaded, and after a failure why they are not here, with a button
 * that calls `retry`. `what` names them, such as "the incidents".
 * @param {string} what
 * @param {() => void} retry
 */
export function createLoadingState(what, retry) {
  const text = element("p", "", "soft");
  const again = button("Try again", retry, "small");
  again.setAttribute("aria-label", `Load ${what} again`);
  const root = container("div", "loading", text, again);
  root.setAttribute("role", "status");
  /**
   * @param {string} sentence
   * @param {unknown} problem
   */
  const show = (sentence, problem) => {
    setText(text, sentence);
    text.className = problem ? "bad" : "soft";
    root.classList.toggle("failed", Boolean(problem));
    again.hidden = !problem;
    root.hidden = !sentence;
  };
  const state = {
    element: root,
    showLoading: () => show(`Loading ${what}.`, null),
    showProblem: (/** @type {unknown} */ error) =>
      show(
        `${what[0].toUpperCase()}${what.slice(1)} could not be loaded: ${errorMessage(error).replace(/\.?$/, ".")}`,
        error,
      ),
    hide: () => show("", null),
  };
  state.showLoading();
  return state;
}

/**
 * `load()` fetches the data that `what` names, and shows them; `request()` of the result calls it, and
 * again soon after a failure. `onLoaded()` is called after a success. Its `element` is that of a
 * loading state; `isLoaded` is whether the data ever came.
 * @param {string} what
 * @param {() => Promise<void> | void} load
 * @param {() => void} [onLoaded]
 * @returns {Loader}
 */
export function createLoader(what, load, onLoaded = () => {}) {
  const state = createLoadingState(what, () => request());
  let requestCount = 0;
  let failureCount = 0;
  let timer = 0;
  const loader = { element: state.element, isLoaded: false, request };

  async function request() {
    clearTimeout(timer);
    const number = ++requestCount;
    try {
      await load();
      if (number !== requestCount) return;
      failureCount = 0;
      loader.isLoaded = true;
      state.hide();
      onLoaded();
    } catch (error) {
      if (number !== requestCount) return;
      state.showProblem(error);
      timer = setTimeout(request, LOADING_RETRY_MS[Math.min(failureCount++, LOADING_RETRY_MS.length - 1)]);
    }
  }

  return loader;
}
