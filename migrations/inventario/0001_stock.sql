-- +goose Up
CREATE TABLE stock (
    producto TEXT    COLLATE "C" PRIMARY KEY,
    unidades INTEGER NOT NULL CHECK (unidades >= 0)
);
INSERT INTO stock VALUES ('tomate-rosa', 120), ('calabacin', 80), ('queso-curado', 5),
                         ('queso-fresco', 30), ('vino-crianza', 200);

-- What inventario did for each order, so that a deduction and its return each
-- happen once, in whatever order and however often the events arrive.
CREATE TABLE descuentos (
    pedido_id TEXT        COLLATE "C" PRIMARY KEY,
    estado    TEXT        NOT NULL CHECK (estado IN ('', 'descontado', 'devuelto', 'rechazado', 'anulado')), -- '' never outlives a transaction
    lineas    JSONB       NOT NULL DEFAULT '[]',          -- what was taken: [{"producto","cantidad"}]
    en        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);

-- +goose Down
DROP TABLE descuentos;
DROP TABLE stock;
