// Cuts a text into the pieces that a model translates one by one, and finds the piece of a position.
//
// Nothing here knows the page: a test runs it in Node.

// After these a full stop ends no sentence, though a capital letter follows: an initial or an abbreviation of single letters such as
// “z. B.”, and what stands before names.
const SHORT = "\\p{L}|Dr|Prof|Hr|Fr|Mr|Mrs|Ms|St|Nr";

/** A language as browsers know it; undefined for one that is not given or, as a recipe may call it anything, not known. */
export function known(language) {
  try {
    return language === null ? undefined : Intl.getCanonicalLocales(language)[0];
  } catch (error) {
    if (error instanceof RangeError) return undefined;
    throw error;
  }
}

/**
 * The pieces of a text, in order; joined as before + text + after they are the text again. As `Translator` in Python, a line break ends
 * a sentence, and what has no letter and no digit is none.
 *
 * @param text what a reader has typed.
 * @param language of the text, such as "de"; null where it is not known.
 * @param unit "sentence", or "document" for a model that reads a whole text at once.
 * @returns [{start, end, before, text, after}]: the range of the piece in the text, and what it holds; before and after stay as they
 *   are, and a piece of nothing to translate has the text "".
 */
export function piecesOf(text, language, unit = "sentence") {
  const ranges = unit === "sentence" ? sentencesOf(text, known(language)) : text ? [text] : [];
  let start = 0;
  return ranges.map((range) => {
    const sentence = /[\p{L}\p{N}]/u.test(range) ? range.trim() : "";
    const from = sentence ? range.indexOf(sentence) : range.length;
    const [before, after] = [range.slice(0, from), range.slice(from + sentence.length)];
    const piece = { start, end: start + range.length, before, text: sentence, after };
    start = piece.end;
    return piece;
  });
}

function sentencesOf(text, language) {
  // `Intl.Segmenter` knows no abbreviations, and takes the “3.” of “am 3. Oktober” for the end of a sentence.
  const words = writesOrdinalsWithAStop(language) ? `${SHORT}|[1-9]|[12]\\d|3[01]` : SHORT;
  const goesOn = new RegExp(`(^|[^\\p{L}\\p{N}])(${words})\\.[^\\S\\r\\n]+$`, "u");
  const segmenter = new Intl.Segmenter(language, { granularity: "sentence" });
  // By line: a line break ends a sentence, and the time of the segmenter grows with the square of a text's length.
  return text.split(/(?<=\n)/).flatMap((line) => {
    const sentences = [];
    for (const { segment } of segmenter.segment(line)) {
      if (sentences.length && goesOn.test(sentences.at(-1))) sentences.push(sentences.pop() + segment);
      else sentences.push(segment);
    }
    return sentences;
  });
}

/** Whether dates of the language are written as in “3. Oktober”. */
function writesOrdinalsWithAStop(language) {
  const date = new Intl.DateTimeFormat(language, { day: "numeric", month: "long", timeZone: "UTC" }).format(0);
  return language !== undefined && /(^|\s)1\.\s/u.test(date);
}

/** The index of the piece with text that a position in the text is in or behind, else of the first with text; -1 without any. */
export function pieceAt(pieces, position) {
  const isText = (piece) => piece.text !== "";
  const before = pieces.findLastIndex((piece) => isText(piece) && piece.start <= position);
  return before < 0 ? pieces.findIndex(isText) : before;
}
