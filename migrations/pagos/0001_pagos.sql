-- +goose Up
CREATE TABLE pagos (
    pedido_id         TEXT        COLLATE "C" PRIMARY KEY,
    importe           BIGINT      NOT NULL CHECK (importe >= 0),        -- in cents
    estado            TEXT        NOT NULL CHECK (estado IN ('', 'cobrado', 'rechazado', 'devuelto', 'anulado')), -- '' never outlives a transaction
    ref_pasarela      TEXT,                               -- the gateway's reference of the charge
    ref_devolucion    TEXT,                               -- and of the refund
    creado_en         TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actualizado_en    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE pagos;
