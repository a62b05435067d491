-- Questions in SQL, each with a name before it and a semicolon after it: see test_cases.py.

-- mean over time
SELECT lat, lon, avg(air) AS mean FROM air GROUP BY lat, lon ORDER BY lat, lon;

-- zonal mean
SELECT lat, avg(air) AS zonal, stddev(air) AS s FROM air GROUP BY lat ORDER BY lat DESC;

-- monthly
SELECT date_trunc('month', time) AS m, avg(air) FROM air GROUP BY date_trunc('month', time);

-- climatology
SELECT month(time) AS m, lat, lon, avg(air) AS c, count(air) FROM air GROUP BY 1, 2, 3;

-- seasons
SELECT CASE WHEN month(time) IN (12, 1, 2) THEN 'DJF' WHEN month(time) BETWEEN 3 AND 5 THEN 'MAM' WHEN
month(time) BETWEEN 6 AND 8 THEN 'JJA' ELSE 'SON' END AS season, avg(air) - 273.15, max(air) FROM air GROUP
BY season;

-- hours
SELECT hour(time), extract(dow FROM time), avg(air), var_pop(air) FROM air GROUP BY 1, 2;

-- weighted
SELECT time, sum(air * cos(radians(lat))) / sum(CASE WHEN air IS NOT NULL THEN cos(radians(lat)) END) FROM
air GROUP BY time;

-- anomalies
WITH c AS (SELECT lat, lon, month(time) AS m, avg(air) AS mean FROM air GROUP BY lat, lon, month(time))
SELECT a.time, a.lat, a.lon, a.air - c.mean AS anomaly FROM air a JOIN c ON a.lat = c.lat AND a.lon = c.lon
AND month(a.time) = c.m WHERE a.lat > 60 AND a.time >= '2014-06-01';

-- wind
SELECT lat, avg(sqrt(u * u + v * v)) AS speed, max(degrees(atan2(u, v))) FROM air WHERE lon < 210 GROUP BY
lat;

-- degree days
SELECT year(time) AS y, sum(greatest(air - 288.15, 0)) FROM air GROUP BY year(time);

-- wet days
SELECT lat, lon, count(CASE WHEN rain > 1 THEN 1 END) / count(rain) FROM air GROUP BY lat, lon;

-- hottest
SELECT time, lat, lon, air FROM air WHERE air IS NOT NULL ORDER BY air DESC, time, lat, lon LIMIT 5;

-- box
SELECT count(*), avg(air), min(time), max(time) FROM air WHERE lat BETWEEN 30 AND 50 AND lon BETWEEN 205 AND
215 AND time BETWEEN '2013-06-01' AND '2013-08-31';

-- boxes
SELECT b.name, avg(a.air) FROM air a JOIN (VALUES ('north', 50, 80), ('south', 10, 50)) AS b(name, low,
high) ON a.lat >= b.low AND a.lat < b.high GROUP BY b.name;

-- lag
SELECT time, lat, m - lag(m) OVER (PARTITION BY lat ORDER BY time) AS change FROM (SELECT time, lat,
avg(air) AS m FROM air GROUP BY time, lat);

-- running mean
SELECT d, avg(m) OVER (ORDER BY d ROWS BETWEEN 2 PRECEDING AND CURRENT ROW) FROM (SELECT date(time) AS d,
avg(air) AS m FROM air GROUP BY date(time));

-- rank
SELECT * FROM (SELECT lat, lon, avg(air) AS m, rank() OVER (PARTITION BY lat ORDER BY avg(air) DESC) AS r
FROM air GROUP BY lat, lon) WHERE r = 1;

-- having
SELECT lat, avg(air) AS air FROM air GROUP BY lat HAVING avg(air) > 280 ORDER BY air;

-- pivot by rows
SELECT * FROM (SELECT lat, year(time) AS y, air FROM air) PIVOT (avg(air) FOR y IN (2013, 2014));

-- pivot by case
SELECT lat, avg(CASE WHEN year(time) = 2013 THEN air END) AS a, avg(air) FILTER (WHERE year(time) = 2014) AS
b FROM air GROUP BY lat;

-- two years
SELECT a.lat, a.m - b.m FROM (SELECT lat, avg(air) AS m FROM air WHERE year(time) = 2014 GROUP BY lat) a
JOIN (SELECT lat, avg(air) AS m FROM air WHERE year(time) = 2013 GROUP BY lat) b USING (lat);

-- quantiles
SELECT lat, percentile(air, 0.9), median(air) FROM air GROUP BY lat;

-- correlation
SELECT lat, corr(u, v), covar_pop(u, v), regr_slope(u, v) FROM air GROUP BY lat;

-- histogram
SELECT floor(air / 5) * 5 AS bin, count(*) FROM air WHERE air IS NOT NULL GROUP BY bin ORDER BY bin;

-- coarser
SELECT floor(lat / 20) * 20 AS la, floor(lon / 5) * 5 AS lo, avg(air), count(*) FROM air GROUP BY 1, 2;

-- nearest
SELECT DISTINCT lat, lon FROM air ORDER BY abs(lat - 41.3) + abs(lon - 207.2), lat, lon LIMIT 1;

-- rollup
SELECT year(time) AS y, month(time) AS m, sum(rain), count(*) FROM air GROUP BY ROLLUP (year(time),
month(time));

-- cube
SELECT lat, year(time), max(v), grouping(lat) FROM air GROUP BY CUBE (lat, year(time));

-- union
SELECT 'all' AS what, avg(air) AS m FROM air UNION ALL SELECT 'north', avg(air) FROM air WHERE lat > 45;

-- exists
SELECT DISTINCT a.time FROM air a WHERE EXISTS (SELECT 1 FROM air b WHERE b.time = a.time AND b.rain > 30);

-- scalar
SELECT lat, avg(air) - (SELECT avg(air) FROM air) AS d FROM air GROUP BY lat;

-- outer
SELECT c.m, x.mean FROM (SELECT DISTINCT month(time) AS m FROM air) c LEFT JOIN (SELECT month(time) AS m,
avg(air) AS mean FROM air WHERE lat > 1000 GROUP BY month(time)) x ON c.m = x.m;

-- spell
SELECT count(*) FROM (SELECT time, air, lead(air) OVER (ORDER BY time) AS n FROM air WHERE lat = 45 AND lon
= 210) WHERE air > 280 AND n > 280;

-- interval
SELECT count(*), avg(air) FROM air WHERE time >= TIMESTAMP_NTZ '2013-01-01' + INTERVAL 3 MONTHS;

-- ndvi
SELECT time, avg((nir - red) / (nir + red)) AS ndvi, count(*) FROM air.scene WHERE quality <= 1 GROUP BY
time;

-- ndvi change
SELECT a.y, a.x, (b.nir - b.red) / (b.nir + b.red) - (a.nir - a.red) / (a.nir + a.red) AS d FROM air.scene a
JOIN air.scene b ON a.y = b.y AND a.x = b.x WHERE month(a.time) = 3 AND month(b.time) = 9;

-- bands
SELECT month(time), avg(red), max(nir), avg(nir * 2.5 - 1.0) FROM air.scene WHERE x < 600050 GROUP BY 1;

-- two groups
SELECT m, s.red, t.air FROM (SELECT month(time) AS m, avg(red) AS red FROM air.scene GROUP BY 1) s JOIN
(SELECT month(time) AS m, avg(air) AS air FROM air GROUP BY 1) t USING (m);
