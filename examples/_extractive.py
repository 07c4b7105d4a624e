"""A summary of a customer made of their own words: no model, and the same for the same customer.

Messages are cleaned of quotes, signatures and repetitions and cut into sentences. The best are given in their
order: by how often their words occur in the conversation, where they stand, and how urgent they sound.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import Decimal

import attrs

from examples._customers import Customer, Mail, Order

SENTENCES, PER_MESSAGE, LONGEST = 5, 2, 280

_QUOTE = re.compile(r"\s*>|(On|Am|Op|Le|El|Il)\b.*(wrote|schrieb|schreef|écrit|escribió|scritto)\b.*:\s*$")
_END = re.compile(r"--\s*$|-+ ?Original Message|Sent from my|Gesendet von|This email and any|Le informazi")
_GREETING = re.compile(
    r"(?i)(dear|hi|hello|hallo|hey|hej|hola|hoi|bonjour|buon\w+|good|dzień|sehr|gentile|spett\S+|boa)\b.{0,40},?"
    r"|.{0,20}\b(regards|sincerely|cheers|wishes|grüßen?|gruß|saluti|cumprimentos|saludos|pozdrawiam.*)\W*",
)
_SPLIT = re.compile(r"(?<=[.!?…])\s+(?=[^\sa-z])|\n\s*\n|\n(?=\d[.)] |- )")
_WORD = re.compile(r"[^\W\d_]{4,}")
_URGENT = re.compile(
    r"(?i)\b(urgen|asap|today|right away|danger|gefähr|recall|refund|money back|chargeback|hoy\b|heute|oggi|"
    r"gas\b|ombuds|complaint|diffid|allerg|epipen|burn|broke|leak|hospital|exploded|burst|jamais|rotta|zwrot|"
    r"wymian|stoppen|faltan|reembols|grapa|unplugged)|!!",
)


@attrs.frozen
class _Sentence:
    mail: Mail
    text: str
    place: int
    words: frozenset[str]


def summarise(customer: Customer) -> str:
    """Facts, then up to five sentences with date and sender; lines of plain text."""
    mails = list(_cleaned(customer.messages))
    best = _best([each for mail, text in mails for each in _sentences(mail, text)])
    said = [f"- {each.mail.at:%Y-%m-%d} {each.mail.sender}: {each.text}" for each in best]
    about = f"{customer.name} ({customer.id}), customer since {customer.since}, language {customer.language}."
    return "\n".join([about, *_orders(customer.orders), _inbox(len(customer.messages), mails), *said])


def _orders(orders: Sequence[Order]) -> Iterator[str]:
    states = Counter(each.status for each in orders)
    kept: dict[str, Decimal] = {}
    for order in orders:
        kept[order.currency] = kept.get(order.currency, Decimal()) + order.total - (order.refunded or 0)
    listed = [f"{number} {status}" for status, number in sorted(states.items())]
    listed += [f"{amount} {currency} after refunds" for currency, amount in kept.items()] or ["none"]
    yield f"Orders: {', '.join(listed)}."
    for order in orders:
        if order.status in ("processing", "shipped"):
            what = ", ".join(f"{item.quantity} x {item.name}" for item in order.items)
            yield f"Open: {order.id} of {order.placed}, {order.status}: {what}."


def _inbox(received: int, mails: Sequence[tuple[Mail, str]]) -> str:
    if not mails:
        return "Inbox: empty."
    last = mails[-1][0]
    by = "the customer" if last.sender == "customer" else last.sender
    dropped = received - len(mails)
    return f"Inbox: {received} messages, {dropped} dropped; last word: {by}, {last.at:%Y-%m-%d}."


def _cleaned(messages: Sequence[Mail]) -> Iterator[tuple[Mail, str]]:
    """What people wrote themselves, each text once."""
    seen: set[tuple[str, str]] = set()
    for mail in messages:
        text = _own_words(mail.text)
        if text and mail.sender != "auto" and (mail.sender, text) not in seen:
            seen.add((mail.sender, text))
            yield mail, text


def _own_words(text: str) -> str:
    lines: list[str] = []
    for line in re.sub(r"<br\s*/?>", "\n", html.unescape(text)).splitlines():
        if _END.match(line):
            break
        if not _QUOTE.match(line):
            lines.append("" if _GREETING.fullmatch(line.strip()) else line.strip())
    return "\n".join(lines).strip()


def _sentences(mail: Mail, text: str) -> Iterator[_Sentence]:
    for place, part in enumerate(_SPLIT.split(text)):
        words = frozenset(_WORD.findall(part.casefold()))
        if len(words) >= 3:
            yield _Sentence(mail, " ".join(part.split())[:LONGEST], place, words)


def _best(sentences: Sequence[_Sentence]) -> list[_Sentence]:
    counts = Counter(word for each in sentences for word in each.words)
    chosen: list[_Sentence] = []
    for each in sorted(sentences, key=lambda each: -_score(each, counts, sentences)):
        beside = sum(other.mail is each.mail for other in chosen)
        new = all(len(each.words & other.words) * 2 < len(each.words) for other in chosen)
        if new and beside < PER_MESSAGE and len(chosen) < SENTENCES:
            chosen.append(each)
    return [each for each in sentences if each in chosen]


def _score(sentence: _Sentence, counts: Counter[str], among: Sequence[_Sentence]) -> float:
    told = sum(counts[word] for word in sentence.words) / max(counts.values())
    edge = sentence.mail in (among[0].mail, among[-1].mail)
    urgency = min(3, len(_URGENT.findall(sentence.text)))
    score = told / (len(sentence.words) + 4) + 0.3 / (1 + sentence.place) + 0.3 * edge + 0.25 * urgency
    return score if sentence.mail.sender == "customer" else 0.7 * score
