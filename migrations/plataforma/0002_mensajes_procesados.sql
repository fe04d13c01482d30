-- +goose Up
CREATE TABLE mensajes_procesados (
    id_mensaje   TEXT        NOT NULL,                    -- id_evento of the envelope
    consumidor   TEXT        NOT NULL,                    -- 'inventario.descuento_stock'
    procesado_en TIMESTAMPTZ NOT NULL DEFAULT now(),
    huella       BYTEA       NOT NULL,                    -- fingerprint of the content: the same id with another content is reported
    PRIMARY KEY (id_mensaje, consumidor)
);
CREATE INDEX mensajes_procesados_edad ON mensajes_procesados (procesado_en);

-- +goose Down
DROP TABLE mensajes_procesados;
