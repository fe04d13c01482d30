-- +goose Up
CREATE TABLE pedidos (
    id                  TEXT        COLLATE "C" PRIMARY KEY,
    cliente             TEXT        NOT NULL,
    mercado             TEXT        NOT NULL,
    estado              TEXT        NOT NULL CHECK (estado IN ('creado', 'pagado', 'cancelado')),
    tarjeta             TEXT        NOT NULL,             -- a token, never a card number; masked in every view
    total_centimos      BIGINT      NOT NULL CHECK (total_centimos > 0),
    direccion_entrega   JSONB,
    clave_idempotencia  TEXT        UNIQUE,
    huella              BYTEA       NOT NULL,             -- of the request: the same id with another content is a conflict
    motivo              TEXT,                             -- why it was cancelled
    creado_en           TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    actualizado_en      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX pedidos_recientes   ON pedidos (creado_en DESC, id DESC);
CREATE INDEX pedidos_por_cliente ON pedidos (cliente, creado_en DESC, id DESC);

CREATE TABLE lineas_pedido (
    pedido_id       TEXT    COLLATE "C" NOT NULL REFERENCES pedidos (id) ON DELETE CASCADE,
    linea           INTEGER NOT NULL,
    producto        TEXT    NOT NULL,
    cantidad        INTEGER NOT NULL CHECK (cantidad > 0),
    precio_centimos BIGINT  NOT NULL CHECK (precio_centimos > 0),
    PRIMARY KEY (pedido_id, linea)
);

CREATE TABLE historial_pedido (
    pedido_id TEXT        COLLATE "C" NOT NULL REFERENCES pedidos (id) ON DELETE CASCADE,
    orden     INTEGER     NOT NULL,
    estado    TEXT        NOT NULL,
    motivo    TEXT,
    en        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (pedido_id, orden)
);

-- +goose Down
DROP TABLE historial_pedido;
DROP TABLE lineas_pedido;
DROP TABLE pedidos;
