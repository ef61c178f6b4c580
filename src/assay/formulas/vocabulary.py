"""Words of made workbooks: headers and labels in four languages, months, things and people; and two further sets."""

from __future__ import annotations

from dataclasses import dataclass

from assay.formulas import held_words as held

# concept -> language -> words that people use for it
WORDS: dict[str, dict[str, list[str]]] = {
    "item": {
        "en": ["Item", "Product", "Article", "Description"],
        "de": ["Artikel", "Produkt"],
        "fr": ["Article", "Produit"],
        "es": ["Artículo", "Producto"],
    },
    "qty": {
        "en": ["Qty", "Quantity", "Units", "Pieces"],
        "de": ["Menge", "Anzahl", "Stück"],
        "fr": ["Quantité", "Qté"],
        "es": ["Cantidad", "Unidades"],
    },
    "price": {
        "en": ["Price", "Unit price", "Unit cost", "Rate"],
        "de": ["Preis", "Einzelpreis"],
        "fr": ["Prix", "Prix unitaire"],
        "es": ["Precio", "Precio unitario"],
    },
    "discount": {"en": ["Discount", "Discount %", "Rebate"], "de": ["Rabatt"], "fr": ["Remise"], "es": ["Descuento"]},
    "amount": {
        "en": ["Amount", "Line total", "Total", "Net amount"],
        "de": ["Betrag", "Gesamt"],
        "fr": ["Montant", "Total"],
        "es": ["Importe", "Total"],
    },
    "subtotal": {
        "en": ["Subtotal", "Net total", "Sum"],
        "de": ["Zwischensumme", "Netto"],
        "fr": ["Sous-total"],
        "es": ["Subtotal"],
    },
    "tax": {"en": ["Tax", "VAT", "Sales tax"], "de": ["MwSt", "Steuer"], "fr": ["TVA"], "es": ["IVA"]},
    "taxrate": {
        "en": ["Tax rate", "VAT rate", "Tax %"],
        "de": ["MwSt-Satz", "Steuersatz"],
        "fr": ["Taux de TVA"],
        "es": ["Tipo de IVA"],
    },
    "grand": {
        "en": ["Total", "Grand total", "Amount due"],
        "de": ["Gesamt", "Gesamtsumme"],
        "fr": ["Total", "Total TTC"],
        "es": ["Total", "Total general"],
    },
    "category": {
        "en": ["Category", "Line", "Account"],
        "de": ["Kategorie", "Konto"],
        "fr": ["Catégorie"],
        "es": ["Categoría"],
    },
    "total": {
        "en": ["Total", "Sum", "Year total"],
        "de": ["Summe", "Gesamt"],
        "fr": ["Total", "Somme"],
        "es": ["Total", "Suma"],
    },
    "average": {
        "en": ["Average", "On average", "Average value"],
        "de": ["Durchschnitt", "Mittelwert"],
        "fr": ["Moyenne"],
        "es": ["Promedio", "Media"],
    },
    "share": {
        "en": ["Share", "% of total", "Percent"],
        "de": ["Anteil", "Prozent"],
        "fr": ["Part", "% du total"],
        "es": ["Porcentaje", "% del total"],
    },
    "income": {
        "en": ["Total income", "Income total"],
        "de": ["Summe Einnahmen"],
        "fr": ["Total recettes"],
        "es": ["Total ingresos"],
    },
    "expenses": {
        "en": ["Total expenses", "Expenses total"],
        "de": ["Summe Ausgaben"],
        "fr": ["Total dépenses"],
        "es": ["Total gastos"],
    },
    "net": {
        "en": ["Net", "Balance", "Profit"],
        "de": ["Saldo", "Überschuss"],
        "fr": ["Solde", "Résultat"],
        "es": ["Saldo", "Resultado"],
    },
    "student": {
        "en": ["Student", "Name"],
        "de": ["Name", "Schüler"],
        "fr": ["Nom", "Élève"],
        "es": ["Nombre", "Alumno"],
    },
    "exam": {
        "en": ["Exam", "Test", "Quiz"],
        "de": ["Test", "Klausur"],
        "fr": ["Examen", "Contrôle"],
        "es": ["Examen", "Prueba"],
    },
    "result": {
        "en": ["Result", "Passed", "Status"],
        "de": ["Ergebnis", "Bestanden"],
        "fr": ["Résultat"],
        "es": ["Resultado", "Estado"],
    },
    "best": {"en": ["Best", "Highest", "Maximum"], "de": ["Maximum"], "fr": ["Maximum"], "es": ["Máximo"]},
    "worst": {"en": ["Lowest", "Minimum", "Min"], "de": ["Minimum"], "fr": ["Minimum"], "es": ["Mínimo"]},
    "stock": {
        "en": ["Stock", "On hand", "In stock"],
        "de": ["Bestand", "Lager"],
        "fr": ["Stock", "En stock"],
        "es": ["Existencias", "Stock"],
    },
    "level": {
        "en": ["Reorder level", "Min stock", "Reorder point"],
        "de": ["Mindestbestand", "Meldebestand"],
        "fr": ["Stock minimum"],
        "es": ["Stock mínimo"],
    },
    "reorder": {
        "en": ["Reorder", "Reorder?", "Order now"],
        "de": ["Nachbestellen"],
        "fr": ["À commander"],
        "es": ["Pedir"],
    },
    "value": {
        "en": ["Value", "Stock value", "Total value"],
        "de": ["Wert", "Lagerwert"],
        "fr": ["Valeur"],
        "es": ["Valor"],
    },
    "supplier": {"en": ["Supplier", "Vendor"], "de": ["Lieferant"], "fr": ["Fournisseur"], "es": ["Proveedor"]},
    "phone": {
        "en": ["Contact", "Phone", "City"],
        "de": ["Kontakt", "Ort"],
        "fr": ["Contact", "Ville"],
        "es": ["Contacto", "Ciudad"],
    },
    "toorder": {
        "en": ["Items to reorder", "To reorder"],
        "de": ["Nachzubestellen"],
        "fr": ["Articles à commander"],
        "es": ["Por pedir"],
    },
    "principal": {
        "en": ["Loan amount", "Principal", "Amount borrowed"],
        "de": ["Darlehen", "Kreditbetrag"],
        "fr": ["Montant du prêt"],
        "es": ["Importe del préstamo"],
    },
    "rate": {
        "en": ["Annual rate", "Interest rate", "Rate p.a."],
        "de": ["Zinssatz"],
        "fr": ["Taux annuel"],
        "es": ["Tipo anual"],
    },
    "months": {
        "en": ["Months", "Term (months)", "Number of payments"],
        "de": ["Monate", "Laufzeit"],
        "fr": ["Mois", "Durée (mois)"],
        "es": ["Meses", "Plazo"],
    },
    "payment": {
        "en": ["Monthly payment", "Payment"],
        "de": ["Rate", "Monatsrate"],
        "fr": ["Mensualité"],
        "es": ["Cuota", "Pago mensual"],
    },
    "period": {"en": ["Month", "Period", "No."], "de": ["Monat", "Nr."], "fr": ["Mois", "No"], "es": ["Mes", "N.º"]},
    "opening": {
        "en": ["Opening balance", "Balance start"],
        "de": ["Anfangsstand"],
        "fr": ["Capital initial"],
        "es": ["Saldo inicial"],
    },
    "interest": {"en": ["Interest", "Interest paid"], "de": ["Zinsen"], "fr": ["Intérêts"], "es": ["Intereses"]},
    "repaid": {
        "en": ["Principal paid", "Repayment"],
        "de": ["Tilgung"],
        "fr": ["Amortissement"],
        "es": ["Amortización"],
    },
    "closing": {
        "en": ["Closing balance", "Balance end"],
        "de": ["Endstand", "Restschuld"],
        "fr": ["Capital restant"],
        "es": ["Saldo final"],
    },
    "group": {
        "en": ["Group", "Region", "Team"],
        "de": ["Gruppe", "Region"],
        "fr": ["Groupe", "Région"],
        "es": ["Grupo", "Región"],
    },
    "score": {
        "en": ["Score", "Rating", "Answer"],
        "de": ["Note", "Bewertung"],
        "fr": ["Note", "Score"],
        "es": ["Nota", "Puntuación"],
    },
    "respondent": {"en": ["Respondent", "ID", "Person"], "de": ["Person", "Nr"], "fr": ["Personne"], "es": ["Persona"]},
    "count": {"en": ["Count", "Responses", "Number"], "de": ["Anzahl"], "fr": ["Nombre"], "es": ["Recuento", "Número"]},
}
MONTHS = {
    "en": ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"],
    "de": ["Jan", "Feb", "Mär", "Apr", "Mai", "Jun", "Jul", "Aug", "Sep", "Okt", "Nov", "Dez"],
    "fr": ["janv", "févr", "mars", "avr", "mai", "juin", "juil", "août", "sept", "oct", "nov", "déc"],
    "es": ["ene", "feb", "mar", "abr", "may", "jun", "jul", "ago", "sep", "oct", "nov", "dic"],
}
THINGS = [
    "Bolt",
    "Nut",
    "Washer",
    "Hinge",
    "Cable",
    "Lamp",
    "Chair",
    "Desk",
    "Paper",
    "Toner",
    "Screw",
    "Clamp",
    "Valve",
    "Pump",
    "Filter",
    "Belt",
    "Gear",
    "Motor",
    "Switch",
    "Fuse",
    "Tile",
    "Brush",
    "Paint",
    "Glue",
    "Tape",
    "Hose",
    "Drill",
    "Saw",
    "File",
    "Rope",
]
PEOPLE = [
    "Ada",
    "Ben",
    "Cleo",
    "Dan",
    "Eve",
    "Finn",
    "Gina",
    "Hugo",
    "Ida",
    "Jan",
    "Kira",
    "Leo",
    "Mia",
    "Nora",
    "Omar",
    "Pia",
    "Quin",
    "Rosa",
    "Sam",
    "Tara",
    "Ugo",
    "Vera",
    "Will",
    "Xenia",
    "Yann",
    "Zoe",
]
LANGUAGES = ("en", "de", "fr", "es")
_SHEETS = {
    "invoice": "Invoice", "budget": "Budget", "gradebook": "Grades", "inventory": "Stock", "suppliers": "Suppliers",
    "loan": "Loan", "survey": "Survey",
}  # fmt: skip


@dataclass(frozen=True)
class Vocabulary:
    """All words that a made workbook takes: headers and labels, months, row names, sheet names, groups.

    Attributes
    ----------
    languages : tuple of str
        English first.
    words : dict
        Concept -> language -> words.
    months : dict
        Language -> twelve names.
    things, people, groups : tuple of str
    sheets : dict
        Kind -> sheet name.
    """

    languages: tuple[str, ...]
    words: dict[str, dict[str, list[str]]]
    months: dict[str, list[str]]
    things: tuple[str, ...]
    people: tuple[str, ...]
    groups: tuple[str, ...]
    sheets: dict[str, str]
    firm: str = "Ltd"


def _named(names: str) -> dict[str, str]:
    return dict(zip(_SHEETS, names.split(), strict=True))


VOCABULARIES = {
    "ordinary": Vocabulary(
        LANGUAGES, WORDS, MONTHS, tuple(THINGS), tuple(PEOPLE), ("North", "South", "East", "West", "Centre"), _SHEETS
    ),
    "calibration": Vocabulary(
        ("en", "pt"), held.CALIBRATION, held.CALIBRATION_MONTHS, held.CALIBRATION_THINGS,
        held.CALIBRATION_PEOPLE, ("Red", "Blue", "Green", "Yellow", "Grey"),
        _named("Bill Plan Marks Depot Sources Credit Poll"), "Inc",
    ),
    "unseen": Vocabulary(
        ("en", "nl", "it"), held.UNSEEN, held.UNSEEN_MONTHS, held.UNSEEN_THINGS, held.UNSEEN_PEOPLE,
        ("Harbour", "Airport", "Castle", "Market", "Station"),
        _named("Statement Forecast Pupils Warehouse Makers Mortgage Questionnaire"), "Partners",
    ),
}  # fmt: skip
