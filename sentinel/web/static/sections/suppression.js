// Dialogs that acknowledge a case, silence detectors, or store what a person thinks of a case.
import { button, container, element, errorMessage, recall, remember, setAttributes, showToast } from "../dom.js";
import { openDialog } from "../dialog.js";

/** @type {Option[]} */
const SILENCE_CHOICES = [
  ["30m", "30 minutes"],
  ["1h", "1 hour"],
  ["4h", "4 hours"],
  ["24h", "1 day"],
  ["7d", "7 days"],
];

/**
 * Send a request that changes the run; what went wrong is shown, too.
 * @param {RunSource} source
 * @param {string} path
 * @param {object} body
 * @param {string} done
 */
export async function sendSuppression(source, path, body, done) {
  try {
    await source.post(path, body);
    showToast(done);
    return "";
  } catch (error) {
    showToast(errorMessage(error));
    return errorMessage(error);
  }
}

/**
 * @param {RunSource} source
 * @param {string} subject
 * @param {string} incident
 */
export function openAcknowledgeDialog(source, subject, incident) {
  const author = authorField();
  const comment = textField("Comment", "textarea");
  openFormDialog({
    title: "Acknowledge",
    text: `${subject}. You are notified again only if it becomes more severe.`,
    fields: [author, comment],
    submitText: "Acknowledge",
    submit: () =>
      source.post("api/acknowledge", {
        incident,
        author: rememberedAuthor(author),
        reason: comment.input.value.trim(),
      }),
    done: "The case is acknowledged.",
  });
}

/** @type {Option[]} */
const FEEDBACK_CHOICES = [
  ["useful", "useful"],
  ["false", "a false alarm"],
];

/**
 * @param {RunSource} source
 * @param {Case} shown
 * @param {() => void} requestCases
 */
export function openFeedbackDialog(source, shown, requestCases) {
  const mark = selectField("The notification was", FEEDBACK_CHOICES);
  mark.input.value = shown.feedback?.mark ?? "useful";
  const author = authorField();
  const comment = textField("Comment", "textarea");
  openFormDialog({
    title: "Feedback",
    text: `${shown.message.subject}. It is stored with the run, in place of an earlier one.`,
    fields: [mark, author, comment],
    submitText: "Store",
    submit: async () => {
      await source.post("api/feedback", {
        case: shown.name,
        mark: mark.input.value,
        author: rememberedAuthor(author),
        comment: comment.input.value.trim(),
      });
      requestCases();
    },
    done: "The feedback is stored.",
  });
}

/**
 * @param {RunSource} source
 * @param {string[]} detectors
 */
export function openSilenceDialog(source, detectors) {
  /** @type {Option[]} */
  const choices = detectors.map((name) => [name, name]);
  const what = selectField("Notifications of", [...choices, ["", "all detectors"]]);
  const duration = selectField("For", SILENCE_CHOICES);
  const author = authorField();
  const comment = textField("Comment", "textarea");
  openFormDialog({
    title: "Silence",
    text: "Notifications are not sent for this time. What still fires at its end is sent then.",
    fields: [what, duration, author, comment],
    submitText: "Silence",
    submit: () =>
      source.post("api/silence", {
        detector: what.input.value,
        for: duration.input.value,
        author: rememberedAuthor(author),
        reason: comment.input.value.trim(),
      }),
    done: "The notifications are silenced.",
  });
}

/** @param {FormDialog} form */
export function openFormDialog({ title, text, fields, submitText, submit, done }) {
  const error = setAttributes(element("p", "", "error"), { role: "alert" });
  const send = setAttributes(
    button(submitText, () => {}, "primary"),
    { type: "submit" },
  );
  const form = container(
    "form",
    "",
    element("p", text, "soft"),
    ...fields.map((field) => field.element),
    error,
    container(
      "div",
      "actions",
      button("Cancel", () => dialog.close()),
      send,
    ),
  );
  const dialog = openDialog(title, form);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    send.disabled = true;
    error.textContent = "";
    try {
      await submit();
      dialog.close();
      showToast(done);
    } catch (problem) {
      error.textContent = errorMessage(problem);
    }
    send.disabled = false;
  });
}

let fieldCount = 0;

/**
 * @param {string} text
 * @param {FormField["input"]} input
 * @returns {FormField}
 */
function labelledField(text, input) {
  input.id = `field-${++fieldCount}`;
  const label = setAttributes(element("label", text), { for: input.id });
  return { element: container("div", "field", label, input), input };
}

/**
 * @param {string} text
 * @param {"input" | "textarea"} [tag]
 */
export function textField(text, tag = "input") {
  return labelledField(text, setAttributes(element(tag, "", "input"), { maxlength: tag === "input" ? 80 : 500 }));
}

/**
 * @param {string} text
 * @param {Option[]} options
 */
function selectField(text, options) {
  const input = element("select", "", "input");
  input.append(...options.map(([value, title]) => setAttributes(element("option", title), { value })));
  return labelledField(text, input);
}

export function authorField() {
  const field = textField("Your name");
  field.input.value = recall("author") ?? "";
  field.input.setAttribute("autocomplete", "name");
  return field;
}

/** @param {FormField} field */
export function rememberedAuthor(field) {
  const author = field.input.value.trim();
  remember("author", author || null);
  return author;
}
