"""Words that only some made workbooks use, so that training and testing need not share any.

`CALIBRATION` is for fitting scores, `UNSEEN` for testing; no word of three letters or more stands in two of the three
vocabularies (`vocabulary.WORDS` is the first).
"""

from __future__ import annotations

_CONCEPTS = (
    "item", "qty", "price", "discount", "amount", "subtotal", "tax", "taxrate", "grand", "category", "total",
    "average", "share", "income", "expenses", "net", "student", "exam", "result", "best", "worst", "stock", "level",
    "reorder", "value", "supplier", "phone", "toorder", "principal", "rate", "months", "payment", "period", "opening",
    "interest", "repaid", "closing", "group", "score", "respondent", "count",
)  # fmt: skip


def _table(**languages: str) -> dict[str, dict[str, list[str]]]:
    """Words by concept and language, from one line a language: concepts by ``;``, words of one concept by ``|``."""
    words: dict[str, dict[str, list[str]]] = {}
    for language, line in languages.items():
        for concept, found in zip(_CONCEPTS, line.split(";"), strict=True):
            words.setdefault(concept, {})[language] = [word.strip() for word in found.split("|")]
    return words


def _several(names: str) -> tuple[str, ...]:
    return tuple(names.split())


CALIBRATION = _table(
    en="Service|Thing; Volume; Charge|Singly; Deduction; Payable|Billed; Intermediate; Duty; Duty %; Altogether|Gross;"
    "Class|Bucket; Altogether; Avg; Portion; Revenue altogether; Outlays altogether; Remainder; Learner; Assignment;"
    "Decision; Peak|Max; Least; Held; Threshold; Refill; Valuation; Source; Place; Refills needed; Credit;"
    "Credit charge; Length; Annuity; Index; Debt open; Credit outgo; Redeemed; Debt remaining; Area; Points;"
    "Visitor; Tally",
    pt="Peça; Volume; Custo; Abatimento; A cobrar; Parcial; Imposto; Imposto %; Soma geral; Classe; Soma;"
    "Média; Fatia; Soma das receitas; Soma das despesas; Sobra; Aluna; Trabalho; Decisão; Mais alto; Mais baixo;"
    "Guardado; Limite; Repor; Avaliação; Fornecedora; Lugar; Peças a repor; Empréstimo; Juro ao ano; Comprimento;"
    "Prestação; Índice; Dívida antes; Juros; Abatido; Dívida depois; Zona; Pontos; Visitante; Contagem",
)
UNSEEN = _table(
    en="Goods|Wares; Ordered|Copies; Each|Fee; Reduction|Markdown; Extended|Worth; Goods in all; GST|Levy;"
    "GST %|Levy %; Overall|To pay; Heading|Post; Overall|Entire; Mean; Proportion|Fraction; Overall earnings;"
    "Overall spending; Left over|Surplus; Pupil; Essay|Task; Verdict|Outcome; Largest|Top; Smallest; Available|Shelf;"
    "Lower limit|Safety margin; Buy?|Purchase again; Worth; Maker|Seller; Town|Telephone; Wares to buy; Mortgage|Lent;"
    "Yearly percentage; Duration|Instalments; Regular outlay; Turn|Step; Owed before; Finance fee; Cleared;"
    "Owed after; District|Branch; Mark|Grade; Participant; Frequency|Times",
    nl="Waar; Hoeveel; Stukprijs; Korting; Bedrag; Tussentelling; Heffing; Heffing %; Totaal; Rubriek; Totaal;"
    "Gemiddelde; Aandeel; Totaal inkomsten; Totaal uitgaven; Overschot; Leerling; Toets; Uitslag; Hoogste; Laagste;"
    "Voorraad; Ondergrens; Bijbestellen; Waarde; Leverancier; Plaats; Nog te bestellen; Lening; Rente per jaar;"
    "Looptijd; Termijn; Volgnummer; Schuld vooraf; Rente; Aflossing; Schuld achteraf; Groep; Cijfer; Deelnemer; Aantal",
    it="Merce; Quanti; Prezzo; Sconto; Importo; Imponibile; Imposta; Aliquota; Totale; Voce; Totale; Medio;"
    "Quota; Totale entrate; Totale uscite; Differenza; Allievo; Compito; Esito; Massimo; Minimo; Giacenza; Scorta;"
    "Riordino; Valore; Fornitore; Luogo; Da riordinare; Mutuo; Tasso annuo; Durata; Rata; Numero; Debito iniziale;"
    "Interessi; Capitale reso; Debito finale; Gruppo; Voto; Partecipante; Frequenza",
)
CALIBRATION_MONTHS = {
    "en": [f"Stage {i}" for i in range(1, 13)],
    "pt": [f"{half} {i}" for half in ("Bloco", "Ciclo") for i in range(1, 7)],
}
UNSEEN_MONTHS = {
    "en": [f"Week {i}" for i in range(1, 13)],
    "nl": [f"Kwartaal {i}" for i in range(1, 13)],
    "it": [f"Settimana {i}" for i in range(1, 13)],
}
CALIBRATION_THINGS = _several(
    "Coffee Tea Sugar Milk Bread Butter Cheese Honey Rice Pasta Salt Pepper Flour Egg Apple Pear Plum Lemon Olive "
    "Onion Carrot Bean Pea Corn Oat Yeast Juice Water Soda Jam"
)
UNSEEN_THINGS = _several(
    "Concert Museum Hotel Flight Taxi Ferry Dinner Lunch Guide Ticket Visa Map Camera Tent Boots Jacket Scarf Gloves "
    "Bicycle Helmet Kayak Paddle Rucksack Torch Stove Compass Whistle Towel Blanket Pillow"
)
CALIBRATION_PEOPLE = _several(
    "Abel Bea Carl Dora Emil Frida Gert Hana Ivo Jutta Karl Lena Max Nils Olga Paul Rolf Sara"
)
UNSEEN_PEOPLE = _several(
    "Amir Bilal Chen Divya Efe Farah Goran Hiro Indra Jiro Kofi Lakshmi Mehmet Nadia Osei Priya Ravi"
)
