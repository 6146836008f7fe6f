// The note about a run: how it is shown, and the dialog in which people write it.
import { button, container, element, formatTime, setAttributes, setText, showToast } from "./dom.js";
import { getJson, post } from "./source.js";
import { authorField, openFormDialog, rememberedAuthor, textField } from "./sections/suppression.js";

const NOTE_MAX_CHARS = 1000;

/**
 * Open the dialog with the newest text. `path` leads to `api/note` of the run; `onSaved` gets the new
 * note { text, author, time }, or null.
 * @param {string} name
 * @param {string} path
 * @param {(note: RunNote | null) => void} onSaved
 */
export async function openNoteDialog(name, path, onSaved) {
  /** @type {RunNote | null} */
  let known;
  try {
    known = await getJson(path);
  } catch {
    // An empty dialog would delete the note.
    showToast("The note cannot be read. Try again.");
    return;
  }
  const note = textField("Note", "textarea");
  const author = authorField();
  note.input.value = known?.text ?? "";
  setAttributes(note.input, { maxlength: NOTE_MAX_CHARS, rows: 5 });
  openFormDialog({
    title: "Note",
    text: `${name}. Everybody who sees the run can read it. Without a text, the note is deleted.`,
    fields: [note, author],
    submitText: "Save",
    submit: async () => {
      const saved = await post(path, { text: note.input.value, author: rememberedAuthor(author) });
      onSaved(saved.note);
    },
    done: "The note is saved.",
  });
}

/**
 * The note in the header of a run, with a button that changes it; a report has none.
 * @param {boolean} isReport
 */
export function createRunNote(isReport) {
  const text = element("span", "", "note-text");
  const facts = element("small", "", "soft");
  const edit = button(
    "Add a note",
    () => openNoteDialog(run.name || run.run, "api/note", (note) => show({ ...run, note })),
    "quiet small",
  );
  const root = container("div", "run-note", text, facts, !isReport && edit);
  /** @type {NotedRun} */
  let run = { run: "" };

  /** @param {NotedRun} newRun */
  const show = (newRun) => {
    run = newRun;
    const { note } = run;
    root.hidden = isReport && !note;
    root.classList.toggle("written", Boolean(note));
    setText(text, note?.text ?? "");
    setText(facts, note ? [note.author, formatTime(note.time)].filter(Boolean).join(", ") : "");
    setText(edit, note ? "Edit" : "Add a note");
    setAttributes(edit, { "aria-label": note ? "Edit the note" : null });
  };
  show(run);
  return { element: root, update: show };
}
