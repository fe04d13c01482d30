-- +goose Up
CREATE TABLE mensajes (                                   -- the log of every topic
    posicion     BIGINT      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topico       TEXT        NOT NULL,
    id           TEXT        NOT NULL,
    tipo         TEXT        NOT NULL,                    -- '' if the message does not say
    clave        TEXT        NOT NULL,
    carril       SMALLINT    NOT NULL,                    -- lane: hash of the key, see platform/keyed
    cabeceras    JSON        NOT NULL,
    carga        BYTEA       NOT NULL,
    publicado_en TIMESTAMPTZ NOT NULL DEFAULT now(),
    no_antes     TIMESTAMPTZ                              -- not due before
);
-- No other index: each would cost every publication, and a new consumer and
-- the purge, the only ones to read the log as such, walk it in its order.

CREATE TABLE suscripciones (
    consumidor   TEXT        PRIMARY KEY,
    topico       TEXT        NOT NULL,
    tipos        TEXT[],                                  -- only these types; all if NULL
    creada_en    TIMESTAMPTZ NOT NULL DEFAULT now()
);

CREATE TABLE entregas (                                   -- one row per message and consumer until it is acknowledged
    consumidor   TEXT        NOT NULL,
    posicion     BIGINT      NOT NULL,
    carril       SMALLINT    NOT NULL,
    clave        TEXT        NOT NULL,
    no_antes     TIMESTAMPTZ,                             -- not due before; the later ones of its key wait with it
    PRIMARY KEY (consumidor, posicion)
);
CREATE INDEX entregas_aplazadas ON entregas (consumidor, clave, posicion) WHERE no_antes IS NOT NULL;

-- +goose Down
DROP TABLE entregas;
DROP TABLE suscripciones;
DROP TABLE mensajes;
