#!/usr/bin/env python3
"""Prints the windows of calendars in 60 time zones, from 1970 to 2100, by Python's `zoneinfo`: tests/it/calendar/windows.txt.

A row is the zone, the unit, the first weekday, day or month, a moment, and when its window starts and ends, in seconds since
1970. The dates are computed by Python's `datetime`. A date starts with the first second in which a clock of the zone shows it or
a later date: found among the moments at which the zone's offsets make it midnight, and those at which an offset changes.
"""

import datetime
import random
import sys
import zoneinfo

# Among them zones that skip or repeat a midnight (Beirut, Cairo, Sao Paulo, Asuncion, Havana, Amman, Gaza's neighbors), a day (Apia,
# Kwajalein, Fakaofo), change at 00:01 (St Johns), or by half an hour (Lord Howe).
ZONES = """
Africa/Abidjan Africa/Cairo Africa/Casablanca Africa/Johannesburg Africa/Lagos Africa/Nairobi Africa/Tunis Africa/Windhoek
America/Anchorage America/Argentina/Buenos_Aires America/Asuncion America/Bogota America/Caracas America/Chicago America/Denver
America/Halifax America/Havana America/Lima America/Los_Angeles America/Mexico_City America/New_York America/Nuuk
America/Phoenix America/Santiago America/Sao_Paulo America/St_Johns America/Toronto Asia/Amman Asia/Baghdad Asia/Beirut
Asia/Damascus Asia/Dhaka Asia/Dubai Asia/Hong_Kong Asia/Jakarta Asia/Jerusalem Asia/Kathmandu Asia/Kolkata Asia/Manila
Asia/Pyongyang Asia/Seoul Asia/Shanghai Asia/Singapore Asia/Tehran Asia/Tokyo Atlantic/Azores Australia/Adelaide
Australia/Lord_Howe Australia/Sydney Europe/Berlin Europe/Dublin Europe/Istanbul Europe/London Europe/Moscow Europe/Paris
Pacific/Apia Pacific/Auckland Pacific/Fakaofo Pacific/Honolulu Pacific/Kwajalein
""".split()
UTC = datetime.timezone.utc
EPOCH = datetime.date(1970, 1, 1)
DAY = 86_400
FIRST, LAST = DAY * 400, int(datetime.datetime(2100, 1, 1, tzinfo=UTC).timestamp())


def local(zone, moment):
    return datetime.datetime.fromtimestamp(moment, UTC).astimezone(zone)


def offset(zone, moment):
    return int(local(zone, moment).utcoffset().total_seconds())


def start_of(zone, date):
    midnight = (date - EPOCH).days * DAY
    moments = range(midnight - 2 * DAY, midnight + 2 * DAY, 900)
    offsets = [offset(zone, moment) for moment in moments]
    candidates = {midnight - each for each in offsets}
    for moment, before, after in zip(moments, offsets, offsets[1:]):
        if before != after:
            low, high = moment, moment + 900
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if offset(zone, middle) == before else (low, middle)
            candidates.add(high)
    return min(moment for moment in candidates if local(zone, moment).date() >= date)


def days_in(year, month):
    return (datetime.date(year + month // 12, month % 12 + 1, 1) - datetime.date(year, month, 1)).days


def day_of(year, month, day):
    return datetime.date(year, month, min(day, days_in(year, month)))


def starts_near(date, unit, first):
    """Dates on which windows start, from well before `date` to well after it."""
    if unit == "day":
        return [date + datetime.timedelta(days=n) for n in range(-4, 5)]
    if unit == "week":
        return [day for n in range(-20, 21) if (day := date + datetime.timedelta(days=n)).weekday() == first]
    months = [(year, month) for year in range(date.year - 2, date.year + 3) for month in range(1, 13)]
    if unit == "month":
        return [day_of(year, month, first) for year, month in months]
    step = 3 if unit == "quarter" else 12
    return [day_of(year, month, 1) for year, month in months if (month - first) % step == 0]


def window(zone, unit, first, moment):
    dates = starts_near(local(zone, moment).date(), unit, first)
    near = [date for date in dates if abs((date - local(zone, moment).date()).days) <= 800]
    before = [date for date in near if date <= local(zone, moment).date()][-3:]
    after = [date for date in near if date > local(zone, moment).date()][:3]
    starts = sorted({start_of(zone, date) for date in before + after})
    start = max(each for each in starts if each <= moment)
    return start, min(each for each in starts if each > moment)


def main():
    numbers = random.Random(2026)
    print(f"# {sys.argv[0].rsplit('/', 1)[-1]}, tzdata {sys.argv[1]}")
    special = {
        "Pacific/Apia": [1325239199, 1325239200, 1325200000],
        "Pacific/Kwajalein": [745890000, 745977600],
        "Asia/Beirut": [1679781599, 1679781600, 1711836000],
        "Africa/Cairo": [1682632800, 1682632799, 1698354000],
        "America/Sao_Paulo": [1541300399, 1541300400, 1518919200],
        "America/St_Johns": [1143948659, 1288492259, 1288494059],
        "America/Havana": [1362891599, 1383451200],
    }
    for name in ZONES:
        zone = zoneinfo.ZoneInfo(name)
        moments = [(None, moment) for moment in special.get(name, [])]
        moments += [(None, numbers.randrange(FIRST, LAST)) for _ in range(20)]
        # Near changes of the offset, by day.
        moment = FIRST
        changes = []
        while moment < LAST and len(changes) < 400:
            if offset(zone, moment) != offset(zone, moment + DAY):
                changes.append(moment)
            moment += DAY
        for change in numbers.sample(changes, min(8, len(changes))):
            moments.append(("day", change + numbers.randrange(-DAY, 2 * DAY)))
        for unit, moment in moments:
            unit = unit or numbers.choice(["day", "week", "month", "month", "quarter", "year"])
            first = {"day": 0, "week": numbers.randrange(7), "month": numbers.choice([1, 1, 15, 29, 30, 31])}.get(
                unit, numbers.randrange(1, 13)
            )
            start, end = window(zone, unit, first, moment)
            print(name, unit, first, moment, start, end)


main()
