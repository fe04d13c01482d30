-- +goose Up
CREATE TABLE mensajes_muertos (
    id           BIGINT      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumidor   TEXT        NOT NULL,
    id_mensaje   TEXT        NOT NULL,
    topico       TEXT        NOT NULL,
    clave        TEXT        NOT NULL,
    tipo         TEXT        NOT NULL DEFAULT '',
    clase        TEXT        NOT NULL CHECK (clase IN ('datos', 'contrato', 'negocio', 'transitorio_agotado', 'fallo')),
    motivo       TEXT        NOT NULL,                    -- first 200 characters, safe to print
    error        TEXT        NOT NULL,                    -- the whole error
    intentos     INTEGER     NOT NULL,
    cabeceras    JSON        NOT NULL,
    carga        BYTEA       NOT NULL,                    -- byte for byte as it came
    huella       BYTEA       NOT NULL,
    muerto_en    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    UNIQUE (consumidor, id_mensaje, huella)
);
CREATE INDEX mensajes_muertos_edad ON mensajes_muertos (muerto_en);

-- +goose Down
DROP TABLE mensajes_muertos;
