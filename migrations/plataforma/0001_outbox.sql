-- +goose Up
CREATE TABLE outbox (
    id           UUID        PRIMARY KEY,                 -- the id_evento of the envelope
    agregado     TEXT        NOT NULL,
    agregado_id  TEXT        NOT NULL,                    -- the key: events of one aggregate keep their order
    tipo         TEXT        NOT NULL,
    version      INTEGER     NOT NULL DEFAULT 1,
    carga        JSONB       NOT NULL,
    creado_en    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    publicado_en TIMESTAMPTZ,
    topico       TEXT        NOT NULL,
    cabeceras    JSON        NOT NULL DEFAULT '{}',
    carril       SMALLINT    NOT NULL,                    -- lane: hash of the key, see platform/keyed
    posicion     BIGINT      GENERATED ALWAYS AS IDENTITY,
    apartado_en  TIMESTAMPTZ,                             -- set aside: the bus refused it for good
    motivo       TEXT
);
CREATE INDEX outbox_pendientes ON outbox (posicion) WHERE publicado_en IS NULL AND apartado_en IS NULL;
CREATE INDEX outbox_apartados  ON outbox (agregado_id, posicion) WHERE apartado_en IS NOT NULL AND publicado_en IS NULL;
CREATE INDEX outbox_publicados ON outbox (publicado_en) WHERE publicado_en IS NOT NULL;

-- +goose Down
DROP TABLE outbox;
