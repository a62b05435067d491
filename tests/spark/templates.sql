-- Shapes of queries for test_generated_sql.py, apart by empty lines. What is in braces is drawn; the same name is
-- the same text.

SELECT {some} FROM {table} WHERE {c}

SELECT {key} AS k, {some} FROM {table} AS x WHERE {c} GROUP BY {key}

SELECT {key}, {some} FROM w WHERE {c} GROUP BY ALL HAVING {value} > 40

SELECT lat, month(time), {some} FROM w WHERE {c} GROUP BY {cube} (lat, month(time))

SELECT * FROM {table} AS x WHERE {c} ORDER BY rain DESC, time, lat, lon LIMIT 7

SELECT * EXCEPT (t2m) FROM w WHERE {c}

SELECT count(*), sum(rain) FROM (SELECT * FROM w WHERE {c} ORDER BY rain DESC, time, lat, lon LIMIT 50) WHERE {d}

SELECT count(*), sum(a.rain) FROM {table} a {join} {other} b ON {match} AND {b} WHERE {a}

SELECT count(*), sum(a.rain) FROM {table} a {half} {other} b ON {match} AND {b} WHERE {a}

SELECT count(*), sum(b.rain) FROM {table} a {join} {other} b ON {match} AND {a} WHERE {b}

SELECT lat, count(*), sum(a.rain - b.rain) FROM {table} a {join} {other} b USING (time, lat, lon) WHERE {place}
GROUP BY lat

SELECT count(*), sum(b.rain) FROM w a, w b, w VERSION AS OF 'v1' AS z WHERE {match} AND z.lat = b.lat
AND z.time = a.time AND {a} AND {b}

SELECT count(*) FROM w a NATURAL JOIN (SELECT time, lat, lon FROM w WHERE {c}) b WHERE {a}

SELECT lat, rain FROM w WHERE {c} {set} SELECT lat, rain FROM w VERSION AS OF 'v1' WHERE {d}

SELECT count(*), sum(l) FROM (SELECT lat AS l, rain FROM w WHERE {c} UNION ALL SELECT {term}, rain FROM w)
WHERE l {word} {number}

SELECT count(*), sum(rain) FROM (SELECT * FROM w WHERE {c} UNION ALL SELECT * FROM w VERSION AS OF 'v1') WHERE {d}

WITH x AS (SELECT * FROM w WHERE {c}), y AS (SELECT lat, max(rain) AS m FROM x GROUP BY lat)
SELECT count(*), sum(m), sum(x.rain) FROM x JOIN y USING (lat) WHERE {x}

WITH m AS (SELECT lat, month(time) AS k, {value} AS v FROM w WHERE {c} GROUP BY 1, 2) SELECT count(*), sum(a.rain), max(v)
FROM w a {join} m ON a.lat = m.lat AND month(a.time) = m.k WHERE {a}

WITH x(lon, lat, r) AS (SELECT lat, lon, rain FROM w) SELECT sum(r) FROM x WHERE lat {word} {number} AND lon > 5

SELECT lat, (SELECT max(b.rain) FROM w b WHERE b.lat = a.lat AND {b}) FROM w a WHERE {a} AND a.rain > 90

SELECT count(*) FROM w a WHERE {a} AND {not}EXISTS (SELECT * FROM w b WHERE b.lat = a.lat AND b.rain > a.rain
AND {b})

SELECT {some} FROM w WHERE lat {not}IN (SELECT lat FROM {table} AS w WHERE {c}) AND {d}

SELECT lat, lon, rain FROM (SELECT *, row_number() OVER (PARTITION BY {key} ORDER BY rain, time, lat, lon) AS n
FROM w WHERE {c}) WHERE n <= 2 AND {d}

SELECT a.lat, x.m FROM w a, LATERAL (SELECT max(rain) AS m FROM w b WHERE b.lat = a.lat AND {b}) x WHERE {a}
AND a.lon = 0

SELECT w.lat, k, count(*) FROM w LATERAL VIEW explode(array(1, rain)) e AS k WHERE {w} AND k < 5 GROUP BY w.lat, k

SELECT * FROM (SELECT lat, month(time) AS m, rain FROM w WHERE {c}) PIVOT (sum(rain) FOR m IN (1, 12))

SELECT lat, p, q FROM (SELECT * FROM w WHERE {c}) PIVOT (sum(rain) FOR lon IN (0 AS p, 5 AS q)) WHERE
lat {word} {number}

SELECT lat, lag({value}) OVER (ORDER BY lat DESC) FROM w WHERE {c} GROUP BY lat

FROM w |> WHERE {c} |> AGGREGATE sum(rain) AS s GROUP BY lat |> WHERE lat > {number}

SELECT `T`.`Lat`, Sum(`T`.rAin) FROM `w` AS `T` WHERE {t} GROUP BY `T`.LAT

WITH RECURSIVE r AS (SELECT lat, 0 AS d FROM w WHERE {c} AND lon = 0 UNION ALL SELECT lat - 5, d + 1 FROM r WHERE
d < 2) SELECT count(*), sum(lat) FROM r WHERE lat {word} {number}

SELECT {values} FROM w.s WHERE {s}

SELECT {by} AS k, {values} FROM w.s WHERE {s} GROUP BY {by}

SELECT name, wind FROM w.s WHERE {s} ORDER BY wind LIMIT 5

SELECT count(*), sum(b.wind) FROM w.s a {join} w.s b USING (hour, name, level) WHERE {point}

SELECT DISTINCT {by} FROM w.s WHERE {s}
