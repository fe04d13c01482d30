package gateway

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"
)

var ledger = []byte("libro")

// asiento is an entry as stored. The card is not in it, but what tells one
// content from another is.
type asiento struct {
	Asiento
	Huella []byte `json:"huella"` // SHA-256 of order, token and amount
}

// cobrar is the ledger's side of a charge. The entry is valid with
// ErrClaveReutilizada too.
func (s *Simulator) cobrar(c Cobro) (Asiento, error) {
	// NUL parts the fields: visible has refused it in all of them.
	huella := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", c.PedidoID, c.Tarjeta, c.ImporteCentimos))
	var other bool
	a, err := s.update(c.Clave, func(found bool, entry *asiento) {
		entry.Llamadas++
		other = found && entry.Estado != Anulado && !bytes.Equal(entry.Huella, huella[:])
		if found {
			return
		}
		entry.PedidoID, entry.Importe, entry.Tarjeta, entry.Huella = c.PedidoID, c.ImporteCentimos, mask(c.Tarjeta), huella[:]
		if strings.HasPrefix(c.Tarjeta, "tok_rechazada") {
			entry.Estado = Rechazado
			return
		}
		entry.Estado, entry.Ref, entry.Cargos = Cobrado, "R-"+uuid.NewString(), entry.Cargos+1
	})
	if err == nil && other {
		err = ErrClaveReutilizada
	}
	return a, err
}

// anular is the ledger's side of an annulment.
func (s *Simulator) anular(clave string) (Asiento, error) {
	return s.update(clave, func(found bool, entry *asiento) {
		switch {
		case !found || entry.Estado == Rechazado:
			entry.Estado = Anulado
		case entry.Estado == Cobrado:
			entry.Estado, entry.RefDevolucion, entry.Devoluciones = Devuelto, "D-"+uuid.NewString(), entry.Devoluciones+1
		}
	})
}

// update changes one entry durably. Batch lets concurrent calls share a sync;
// it may run change twice, each time on the entry as stored. change has no
// error to return: in Batch it would roll everyone else back.
//
// Entries that stay as they are go the same way: a read transaction may see
// what the file does not have for sure yet.
func (s *Simulator) update(clave string, change func(found bool, entry *asiento)) (Asiento, error) {
	var result Asiento
	err := s.db.Batch(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(ledger)
		entry := asiento{Asiento: Asiento{Clave: clave}}
		stored := bucket.Get([]byte(clave))
		if stored != nil {
			if err := json.Unmarshal(stored, &entry); err != nil {
				return fmt.Errorf("entry %s of the gateway's ledger: %w", clave, err)
			}
		}
		change(stored != nil, &entry)
		encoded, err := json.Marshal(entry)
		if err != nil {
			return err
		}
		result = entry.Asiento
		return bucket.Put([]byte(clave), encoded)
	})
	return result, err
}

// page returns up to limit entries after the key desde.
func (s *Simulator) page(desde string, limit int) ([]Asiento, error) {
	list := []Asiento{}
	err := s.db.View(func(tx *bolt.Tx) error {
		cursor := tx.Bucket(ledger).Cursor()
		k, v := cursor.Seek([]byte(desde))
		if k != nil && string(k) == desde {
			k, v = cursor.Next()
		}
		for ; k != nil && len(list) < limit; k, v = cursor.Next() {
			var a Asiento
			if err := json.Unmarshal(v, &a); err != nil {
				return fmt.Errorf("entry %s of the gateway's ledger: %w", k, err)
			}
			list = append(list, a)
		}
		return nil
	})
	return list, err
}

// Entries calls f for each entry, in the order of keys, and ends at the first
// error of f, which it returns. f may take its time and may call the
// simulator; an entry that changes meanwhile is seen as before or as after.
func (s *Simulator) Entries(f func(Asiento) error) error {
	for desde := ""; ; {
		list, err := s.page(desde, maxPagina)
		if err != nil {
			return err
		}
		for _, a := range list {
			if err := f(a); err != nil {
				return err
			}
			desde = a.Clave
		}
		if len(list) == 0 {
			return nil
		}
	}
}

// Resumen adds the ledger up, all of it at one moment.
func (s *Simulator) Resumen() (r Resumen, err error) {
	r.FallosInyectados = s.injected.Load()
	err = s.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(ledger).ForEach(func(k, v []byte) error {
			var a Asiento
			if err := json.Unmarshal(v, &a); err != nil {
				return fmt.Errorf("entry %s of the gateway's ledger: %w", k, err)
			}
			switch a.Estado {
			case Rechazado:
				r.Rechazados++
			case Anulado:
				r.Anulados++
			case Devuelto:
				r.Devueltos++
				r.ImporteDevuelto += a.Importe
				fallthrough
			case Cobrado:
				r.Cobros++
				r.ImporteCobrado += a.Importe
			}
			return nil
		})
	})
	return r, err
}
