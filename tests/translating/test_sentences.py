"""The parts of a text are the text, and they are its sentences."""

import random

import pytest

from reluformer.translating.sentences import split_sentences

# Spaces of one byte and of several, line breaks of all kinds, marks, initials and abbreviations.
SPACES = [*" \t\u00a0\u2009\u202f\u3000\u1680\n\r\v\f\x1c\x85\u2028\u2029", "\r\n"]
MARKS = [*"abcDE.!?…:,'\"„“»«()[]。！？「」１2-–äß😀\u200b\u0301؟।\ufeff\0", "z. B. ", "Dr. ", "A.", "..."]


@pytest.mark.parametrize("language", ["de", "en", "ja", "hi", None, "no-such-language"])
def test_no_text_loses_a_character(language):
    chance = random.Random()
    for _ in range(3_000):
        text = "".join(chance.choices(SPACES * 2 + MARKS, k=chance.randrange(30)))
        sentences, spaces = split_sentences(text, language)
        assert len(spaces) == len(sentences) + 1
        assert spaces[0] + "".join(map("".join, zip(sentences, spaces[1:], strict=True))) == text
        assert all(sentence == sentence.strip() and any(map(str.isalnum, sentence)) for sentence in sentences)


@pytest.mark.parametrize(
    ("text", "sentences", "spaces"),
    [
        ("", [], [""]),
        (" \n\t\r\n", [], [" \n\t\r\n"]),
        ("  Ja. \n", ["Ja."], ["  ", " \n"]),
        ("Ja.  Nein.\r\n\r\nDoch!\n", ["Ja.", "Nein.", "Doch!"], ["", "  ", "\r\n\r\n", "\n"]),
        ("Mein Tag\nHeute schien\ndie Sonne", ["Mein Tag", "Heute schien", "die Sonne"], ["", "\n", "\n", ""]),
        ("Das ist z. B. gut. Dr. Meier kommt.", ["Das ist z. B. gut.", "Dr. Meier kommt."], ["", " ", ""]),
        ("J.\u00a0R.\u00a0R. Tolkien schrieb. Ja.", ["J.\u00a0R.\u00a0R. Tolkien schrieb.", "Ja."], ["", " ", ""]),
        ("Was?! Ja … Na gut... Doch.", ["Was?!", "Ja … Na gut...", "Doch."], ["", " ", " ", ""]),
        ("„Geh weg!“ Dann ging sie.", ["„Geh weg!“", "Dann ging sie."], ["", " ", ""]),
        ("Ende.Neu? Nein.", ["Ende.Neu?", "Nein."], ["", " ", ""]),
        ("Siehe www.Example.Com. Und ASP.NET!", ["Siehe www.Example.Com.", "Und ASP.NET!"], ["", " ", ""]),
        ("Fassung 2.٣ und 3.ßa. Gut.", ["Fassung 2.٣ und 3.ßa.", "Gut."], ["", " ", ""]),
        ("Eins.\n* * *\nZwei.", ["Eins.", "Zwei."], ["", "\n* * *\n", ""]),
    ],
)
def test_the_sentences_of_a_german_text(text, sentences, spaces):
    assert split_sentences(text, "de") == (sentences, spaces)


def test_the_rules_are_those_of_the_language():
    text = "Sie kommt bzw. Er geht."
    assert len(split_sentences(text, "de").sentences) == 1 < len(split_sentences(text, "en").sentences)
    assert split_sentences("これは本です。それはペンです。", "ja").sentences == ["これは本です。", "それはペンです。"]
