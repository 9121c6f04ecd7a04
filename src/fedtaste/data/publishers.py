"""Parse the files of published data sets, in their publishers' formats, into Interactions. Nothing is downloaded here.

The six data sets of the FedRAP paper (Li, Long and Zhou, ICLR 2024) are read as its released code reads them: rows with
a value not above 0 are no interactions, and people with fewer than 10 rows are left out. That code counts rows, so a
pair that stands twice counts twice; here it is merged afterwards, and a note says so.
"""

from __future__ import annotations

import zipfile
from dataclasses import replace

from fedtaste.data.archives import verify
from fedtaste.data.columns import Table, drop_empty_rows, read_ratings
from fedtaste.data.formats import gunzip, read_separated
from fedtaste.data.interactions import Interactions
from fedtaste.data.lazy_polars import pl
from fedtaste.data.vocabulary import vocabulary
from fedtaste.errors import DataError
from fedtaste.text import CONTROL, count

LEAST = 10  # interactions of a person, in the paper
RATINGS = {"user": "user", "item": "item", "rating": "rating", "timestamp": "timestamp"}
GENRES_100K = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip
Rows = list[tuple[str, str, str]]  # item, title, genres


def parse_grouplens_100k(archive: zipfile.ZipFile, ratings_sha256: str) -> Interactions:
    """u.item is Latin-1: number|title (year)|date|date|link|19 flags, one for each genre."""
    rows = []
    for fields in read_lines("u.item", archive.read("ml-100k/u.item").decode("latin-1"), "|", 6):
        genres = [genre for genre, flag in zip(GENRES_100K, fields[5:]) if flag == "1"]
        rows.append((fields[0], fields[1].strip(), ", ".join(genres)))
    ratings = verify("u.data", archive.read("ml-100k/u.data"), ratings_sha256)
    return from_movielens("ml-100k", "u.data", ratings, rows)


def parse_recbole_100k(archive: zipfile.ZipFile, ratings_sha256: str) -> Interactions:
    """RecBole's copy: the ratings as published under a header; title and year apart; genres between spaces."""
    folder = "recbole/dataset_example/ml-100k/ml-100k"
    rows = []
    for item, title, year, genres in read_lines("ml-100k.item", archive.read(f"{folder}.item").decode(), "\t", 4)[1:]:
        unknown = title == "unkonwn"  # as it stands there, for the one film that GroupLens calls "unknown"
        rows.append((item, "unknown" if unknown else f"{title} ({year})", ", ".join(genres.split())))
    ratings = verify("ml-100k.inter", archive.read(f"{folder}.inter").partition(b"\n")[2], ratings_sha256)
    return from_movielens("ml-100k", "ml-100k.inter", ratings, rows)


def parse_ml_1m(archive: zipfile.ZipFile) -> Interactions:
    """ratings.dat: user::item::rating::timestamp. movies.dat, in Latin-1: item::title (year)::genre|genre.

    Numbers of films have gaps, and 177 films of movies.dat have no rating: only what is rated is an item.
    """
    movies = read_lines("movies.dat", archive.read("ml-1m/movies.dat").decode("latin-1"), "::", 3)
    rows = [(item, title.strip(), genres.replace("|", ", ")) for item, title, genres in movies]
    ratings = archive.read("ml-1m/ratings.dat").replace(b"::", b"\t")  # polars takes separators of one character
    return from_movielens("ml-1m", "ratings.dat", ratings, rows)


def from_movielens(name: str, file: str, ratings: bytes, rows: Rows) -> Interactions:
    """user, item, rating, timestamp between tabs, without a header. GroupLens keeps people with 20 ratings and more."""
    return filter_active(name, read_published(file, ratings, RATINGS, "\t", header=False), rows, least=1)


def parse_lastfm(archive: zipfile.ZipFile) -> Interactions:
    """HetRec 2011. user_artists.dat: userID, artistID, weight (how often played); there is no time of playing.

    artists.dat is UTF-8 with some broken bytes: id, name, url, pictureURL. An artist without a name keeps the number.
    """
    artists = read_lines("artists.dat", archive.read("artists.dat").decode("utf-8", "replace"), "\t", 1)[1:]
    columns = {"user": "userID", "item": "artistID", "rating": "weight"}
    table = read_published("user_artists.dat", archive.read("user_artists.dat"), columns, "\t")
    return filter_active("lastfm", table, [(row[0], row[1].strip(), "") for row in artists if len(row) > 1])


def parse_amazon_video(file: str, content: bytes) -> Interactions:
    """user,item,rating,timestamp: without a header as published, or with it, as in files that are filtered already."""
    text = gunzip(file, content)
    return filter_active(
        "amazon-video", read_published(file, text, RATINGS, header=text.startswith((b"user,", b'"user",')))
    )


def parse_tafeng(file: str, content: bytes, customers: bool = False) -> Interactions:
    """Ta Feng, a grocer in Taiwan, November 2000 to February 2001: one row per product in a basket.

    Known: the file has 817,741 rows, 32,266 customers and 23,812 products, and its four months have 120 days; the paper
    writes 120 people and 32,266 items. Its released code has no reader for this file; most readers that it has take the
    first column for the person and the second for the item, and here these are TRANSACTION_DT and CUSTOMER_ID.
    The two numbers suggest that the paper's people are days and its items customers, so that is what `tafeng` gives;
    `tafeng:customers` has customers and the products they buy.
    """
    person, item = ("CUSTOMER_ID", "PRODUCT_ID") if customers else ("TRANSACTION_DT", "CUSTOMER_ID")
    table = read_published(file, gunzip(file, content), {"user": person, "item": item, "timestamp": "TRANSACTION_DT"})
    dates = [pl.col(role) for role, column in table.columns.items() if column == "TRANSACTION_DT"]
    iso = (date.str.to_date("%m/%d/%Y", strict=False).cast(pl.String).fill_null(date) for date in dates)
    data = filter_active("tafeng", replace(table, frame=table.frame.with_columns(iso)))
    if customers:
        return data
    return data.noted(
        "As the FedRAP paper's counts imply, the people here are days and the items are customers; "
        "tafeng:customers has customers and products."
    )


def parse_qb_article(file: str, content: bytes) -> Interactions:
    """Tenrec's QB-article.csv: user_id, item_id, click (1.0) and 12 columns about people and articles.

    There are no timestamps, but the publisher sorts each person's rows by the time of the click: the row is the time.

    Known: Tenrec's paper counts 24,516 people, 7,355 articles and 348,736 clicks. Guess: FedRAP took the people from
    there, before its filter, and counted 266,356 interactions after it; then a note about the people is to be expected.
    """
    table = read_published(file, gunzip(file, content), {"user": "user_id", "item": "item_id", "rating": "click"})
    table = replace(table, frame=table.frame.with_columns(timestamp=pl.col("row").cast(pl.Float64)))
    data = replace(filter_active("qb-article", table), value=None)  # a click is not a rating
    return data.noted("No timestamps: a person's rows stand in the order of their clicks, and that order is the time.")


def read_lines(file: str, text: str, separator: str, least: int) -> list[list[str]]:
    """The fields of every line that is not empty. Not `splitlines`, which also splits at characters within titles."""
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            rows.append(line.rstrip("\r").split(separator))
            if len(rows[-1]) < least:
                got = f"{count(len(rows[-1]), 'field')} between {separator!r}, expected at least {least}"
                raise DataError(f"{file}, line {number}: {got}. Get the file again from its publisher.")
    return rows


def read_published(
    file: str, content: bytes, columns: dict[str, str], separator: str = ",", header: bool = True
) -> Table:
    """The columns of a publisher's file under our names (our name -> theirs); without a header, all in this order."""
    again = "Get the file again from its publisher."
    try:
        frame = read_separated(file, content, separator, header, remedy=again)
    except pl.exceptions.PolarsError as error:
        raise DataError(f"{file} cannot be read as text in columns: {str(error).splitlines()[0]}. {again}") from error
    if not header and frame.width == len(columns):
        frame.columns = list(columns.values())
    if missing := [column for column in columns.values() if column not in frame.columns]:
        got = ", ".join(frame.columns) if header else f"{count(frame.width, 'column')} without names"
        kind = f"{', '.join(columns.values())} (of which {', '.join(missing)} missing)" if header else len(columns)
        raise DataError(f"{file} has other columns. Got: {got}. Expected: {kind}. {again}")
    frame = frame.select(pl.col(theirs).alias(ours) for ours, theirs in columns.items()).with_row_index("row")
    return drop_empty_rows(Table(file, frame, columns, (), True, header), ("user", "item"))


def filter_active(name: str, table: Table, rows: Rows | None = None, least: int = LEAST) -> Interactions:
    """Interactions above 0 of people who have at least `least` of them; the vocabularies are what then occurs."""
    frame, values = table.frame, read_ratings(table)
    if values is not None:
        frame = frame.filter(pl.Series(values > 0))
    everyone = frame["user"].n_unique()
    frame = frame.filter(pl.len().over("user") >= least)
    if not len(frame):
        raise DataError(f"{table.file} has nobody with {least} interactions or more. Get the publisher's whole file.")
    people, items = vocabulary([frame["user"]]), vocabulary([frame["item"]])
    by_item = {item: (title, genres) for item, title, genres in rows or []}
    labels = [by_item.get(item, (item, "")) for item in items] if by_item else []
    titles, genres = (tuple(CONTROL.sub("", label[i]) for label in labels) for i in (0, 1))
    data = Interactions.from_table(
        name, replace(table, frame=frame), people, items, titles, genres if any(genres) else ()
    )
    left = everyone - len(people)
    note = f"{count(left, 'person', 'people')} with fewer than {least} interactions left out."
    return data.noted(note) if left else data
