"""Words of headers and labels: how they are cut, and what they mean in a few languages."""

from __future__ import annotations

import re
from functools import lru_cache

# What a label asks for, by language. Whole words, lower case.
LABELS: dict[str, dict[str, tuple[str, ...]]] = {
    "SUM": {
        "en": ("total", "totals", "sum", "subtotal", "overall", "net", "gross"),
        "de": ("summe", "gesamt", "gesamtsumme", "zwischensumme", "insgesamt"),
        "fr": ("total", "totaux", "somme", "ensemble"),
        "es": ("total", "totales", "suma", "subtotal"),
        "it": ("totale", "somma", "subtotale"),
        "pt": ("total", "soma", "subtotal"),
        "nl": ("totaal", "som", "subtotaal"),
    },
    "AVERAGE": {
        "en": ("average", "avg", "mean"),
        "de": ("durchschnitt", "mittelwert", "mittel"),
        "fr": ("moyenne",),
        "es": ("promedio", "media"),
        "it": ("media",),
        "pt": ("média", "media"),
        "nl": ("gemiddelde", "gemiddeld"),
    },
    "MAX": {
        "en": ("max", "maximum", "highest", "largest", "best"),
        "de": ("max", "maximum", "höchstwert"),
        "fr": ("max", "maximum"),
        "es": ("max", "máximo", "maximo"),
        "it": ("max", "massimo"),
        "pt": ("max", "máximo"),
        "nl": ("max", "maximum", "hoogste"),
    },
    "MIN": {
        "en": ("min", "minimum", "lowest", "smallest"),
        "de": ("min", "minimum", "kleinster"),
        "fr": ("min", "minimum"),
        "es": ("min", "mínimo", "minimo"),
        "it": ("min", "minimo"),
        "pt": ("min", "mínimo"),
        "nl": ("min", "minimum", "laagste"),
    },
    "COUNT": {
        "en": ("count", "number", "entries"),
        "de": ("anzahl",),
        "fr": ("nombre", "effectif"),
        "es": ("cantidad", "recuento", "número"),
        "it": ("conteggio", "numero"),
        "pt": ("contagem", "número"),
        "nl": ("aantal",),
    },
    "MEDIAN": {"en": ("median",), "de": ("median",), "fr": ("médiane",), "es": ("mediana",), "it": ("mediana",)},
    "STDEV": {"en": ("stdev", "deviation"), "de": ("standardabweichung",), "fr": ("écart",)},
}
LANGUAGES = tuple(sorted({language for words in LABELS.values() for language in words}))
_WORD = re.compile(r"[^\W\d_]+|\d+|%|#")


@lru_cache(maxsize=20_000)
def words(text: str) -> tuple[str, ...]:
    """Words of a label in lower case; words written together in capitals are cut.

    >>> words("UnitPrice (EUR) %"), words("Q1 total")
    (('unit', 'price', 'eur', '%'), ('q', '1', 'total'))
    """
    spaced = re.sub(r"([a-zà-ÿ])([A-ZÀ-Þ])", r"\1 \2", text)
    return tuple(word.lower() for word in _WORD.findall(spaced)[:24])


def asked(text: str, languages: tuple[str, ...] = LANGUAGES) -> list[str]:
    """Functions that a label asks for, the first word first.

    >>> asked("Average score"), asked("Gesamt"), asked("Name")
    (['AVERAGE'], ['SUM'], [])
    """
    found = []
    for word in words(text):
        for function, by_language in LABELS.items():
            if any(word in by_language.get(language, ()) for language in languages) and function not in found:
                found.append(function)
    # "Total average" asks for the average, "Grand total" for the sum
    return sorted(found, key=lambda f: f == "SUM")


@lru_cache(maxsize=50_000)
def similar(a: str, b: str) -> float:
    """How alike two labels are, 0 to 1: shared words, and shared beginnings of words.

    >>> similar("Unit price", "Price per unit") > similar("Unit price", "Unit") > similar("Unit price", "Name")
    True
    """
    x, y = words(a), words(b)
    if not x or not y:
        return 0.0
    if x == y:
        return 1.0
    score = 0.0
    for word in x:
        best = 0.0
        for other in y:
            if word == other:
                best = 1.0
                break
            short = min(len(word), len(other))
            if short >= 3 and word[:short] == other[:short]:
                best = max(best, 0.7)
            elif short >= 4 and word[:4] == other[:4]:
                best = max(best, 0.5)
        score += best
    return 0.95 * 2 * score / (len(x) + len(y)) if score else 0.0
