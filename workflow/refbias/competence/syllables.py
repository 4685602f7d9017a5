"""Syllables of English words by rule: groups of vowels, less the silent ones, plus those that are spoken apart."""

import functools
import re

_VOWELS = re.compile(r"[aeiouy]+")
# each match is one vowel more than its group shows
_PARTED = re.compile(
    "|".join(
        (
            r"(?<![ctsgx])ia(?!ge)",  # media, trial; not social, marriage
            r"[ct]iat",  # associate, negotiate
            r"(?<![ctsgxhln])io(?!us)|(?<![ctsgx])ious",  # radio, serious; not nation, cautious, million
            r"(?<![cgt])iu",  # medium
            r"(?<![ctf])(?<!fr)ien(?=[ct])|scien|iet",  # client, experience, science, society; not patient
            r"(?<=[^aeiouth])ie(?=r$|rs$|st$)",  # easier, easiest
            r"(?<![gq])ua(?!d)|(?<![gq])ue(?=n[ct])|uou",  # actual, influence, continuous; not language, persuade
            r"(?<![gmp])eo(?!u)|geo(?=[glmp])",  # video, geology; not pigeon, people, someone
            r"[aeiou]ing(?=$|s$|ly$)|(?<=[^aeiou])ying",  # going, trying
            r"aic$|(?<=[aeiouy])sms?$|thms?$",  # mosaic, tourism, rhythm
            r"^creat(?!ur)|^react|^reali[sz]|^area|^idea|^theat|nuclear$|linear$|cereal|museum|^coop|^coord|^pree|^chaos",
            r"^poe[mt]|fluid|^ruin|^suici|cruel|fuel",
        )
    )
)
# the e of a stem is silent before another part of the word: safely, homework
_SILENT_INSIDE = re.compile(
    r"(?<![^aeiouy]l)(?<=[^aeiouy])e(?=(?:ly|ment|ments|ful|less|ness)$)"
    r"|^(?:some|where|there|home|time|life|safe|care|house|base|fire|line|wire|pipe|store|white|type)(?=[bcfghlmptw])"
)
_EXCEPTIONS = {
    **dict.fromkeys(("eye", "eyes", "hour", "hours", "friend", "friends"), 1),
    **dict.fromkeys(("maybe", "someone", "business", "conscience", "soldier", "lion", "riot", "hundred", "naked"), 2),
    **dict.fromkeys(("every", "being", "evening", "giant", "sacred", "wicked"), 2),
    **dict.fromkeys(("recipe", "recipes", "element", "elements", "ratio", "ratios", "italian", "familiar"), 3),
    **dict.fromkeys(("anyone", "everyone", "everything", "businesses"), 3),
    **dict.fromkeys(("diabetes", "apostrophe", "everybody"), 4),
}


@functools.lru_cache(maxsize=65536)
def syllables(word: str) -> int:
    """Count the syllables of one word.

    Parameters
    ----------
    word
        Letters, perhaps with apostrophes or hyphens; parts between hyphens are counted by themselves.

    Returns
    -------
    int
        At least 1; a number counts 1.
    """
    if "-" in word:
        return sum(syllables(part) for part in word.split("-") if part) or 1
    bare = word.lower().replace("\u2019", "'")
    if bare in _EXCEPTIONS:
        return _EXCEPTIONS[bare]
    if bare.endswith("n't"):  # spoken as a syllable of its own behind a consonant: didn't, but not don't
        return syllables(bare[:-3]) + (bare[:-3] not in ("ca", "do", "wo"))
    bare = re.sub(r"[^a-z]", "", bare.partition("'")[0])
    return _EXCEPTIONS.get(bare) or max(1, _by_rule(bare))


def _by_rule(word: str) -> int:
    # consonants that are written as vowels: year, beyond, question, guest
    spoken = re.sub(r"^y(?=[aeiou])|(?<=[aeou])y(?=[aeiou])", "j", word)
    spoken = re.sub(r"(?<=q)u|(?<=g)u(?=[aei])", "", spoken)
    count = len(_VOWELS.findall(spoken)) + len(_PARTED.findall(word)) - _silent_end(spoken)
    return count - bool(_SILENT_INSIDE.search(word))


def _silent_end(word: str) -> bool:
    """Tell whether the last vowel is silent: made, makes, looked; not table, boxes, wanted."""
    table = r"(?<![^aeiouyrl]l)"
    return bool(
        re.search(rf"[^aeiouy]{table}e$", word)
        or re.search(rf"[^aeiouysxzcg](?<![cs]h){table}es$", word)
        or re.search(rf"[^aeiouytd]{table}ed$", word)
    )
