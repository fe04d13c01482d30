package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Options of a simulator's faults. The zero value has none. Which keys are hit
// depends on the key alone, so that runs repeat.
type Options struct {
	Unavailable      float64       // fraction of keys whose first calls get 503
	UnavailableCalls int           // how many of them; 0 means 1
	Hang             float64       // fraction of keys whose first call is charged but not answered in time
	HangFor          time.Duration // how long such an answer is held back; 0 means a minute
	Latency          time.Duration // of every call
	FailFor          time.Duration // faults end so long after the start; 0 means never
}

// Simulator is a payment gateway with a ledger in one file. Cards whose token
// starts with "tok_rechazada" are declined. What it answered is on disk
// before it answers.
type Simulator struct {
	db       *bolt.DB
	opts     Options
	started  time.Time
	injected atomic.Int64

	mu   sync.Mutex
	seen map[string]int // calls of keys that are hit by a fault
}

var ledger = []byte("libro")

// OpenSimulator opens or creates the ledger. A file that another simulator has
// open is an error after a second.
func OpenSimulator(path string, opts Options) (*Simulator, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open the gateway's ledger %s: another process has it open: stop it or choose another file", path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the gateway's ledger %s: %w", path, err)
	}
	db.MaxBatchDelay = time.Millisecond
	err = db.Update(func(tx *bolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(ledger)
		return err
	})
	if err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("prepare the gateway's ledger %s: %w", path, err)
	}
	if opts.UnavailableCalls == 0 {
		opts.UnavailableCalls = 1
	}
	if opts.HangFor == 0 {
		opts.HangFor = time.Minute
	}
	return &Simulator{db: db, opts: opts, started: time.Now(), seen: map[string]int{}}, nil
}

// Close closes the ledger; stop serving first.
func (s *Simulator) Close() error { return s.db.Close() }

// Serve answers on l until ctx ends, and lets calls under way finish.
func (s *Simulator) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second,
		WriteTimeout: s.opts.HangFor + 10*time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve the gateway simulator: %w", err)
	case <-ctx.Done():
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	err := server.Shutdown(stopping)
	<-served
	return err
}

// cobrar is the ledger's side of a charge.
func (s *Simulator) cobrar(c Cobro) (a Asiento, err error) {
	sum := sha256.Sum256([]byte(fmt.Sprintf("%s\x00%s\x00%d", c.PedidoID, c.Tarjeta, c.ImporteCentimos)))
	err = s.update(c.Clave, func(found bool, entry *Asiento) error {
		entry.Llamadas++
		switch {
		case found && entry.Estado == Anulado:
			return nil
		case found && string(entry.Huella) != string(sum[:]):
			return ErrClaveReutilizada
		case found:
			return nil
		}
		entry.PedidoID, entry.Importe, entry.Huella = c.PedidoID, c.ImporteCentimos, sum[:]
		entry.Tarjeta = mask(c.Tarjeta)
		if strings.HasPrefix(c.Tarjeta, "tok_rechazada") {
			entry.Estado = Rechazado
			return nil
		}
		entry.Estado, entry.Ref, entry.Cargos = Cobrado, "R-"+uuid.NewString(), 1
		return nil
	}, &a)
	return a, err
}

// anular is the ledger's side of an annulment.
func (s *Simulator) anular(clave string) (a Asiento, err error) {
	err = s.update(clave, func(found bool, entry *Asiento) error {
		switch {
		case !found, entry.Estado == Rechazado:
			entry.Estado = Anulado
		case entry.Estado == Cobrado:
			entry.Estado, entry.RefDevolucion, entry.Devoluciones = Devuelto, "D-"+uuid.NewString(), 1
		}
		return nil
	}, &a)
	return a, err
}

// update changes one entry durably. Batch lets concurrent calls share a sync;
// it may run change twice, each time on the entry as stored.
func (s *Simulator) update(clave string, change func(found bool, a *Asiento) error, result *Asiento) error {
	return s.db.Batch(func(tx *bolt.Tx) error {
		bucket := tx.Bucket(ledger)
		a := Asiento{Clave: clave}
		stored := bucket.Get([]byte(clave))
		if stored != nil {
			if err := json.Unmarshal(stored, &a); err != nil {
				return fmt.Errorf("entry %s of the ledger: %w", clave, err)
			}
		}
		if err := change(stored != nil, &a); err != nil {
			return err
		}
		encoded, err := json.Marshal(a)
		if err != nil {
			return err
		}
		*result = a
		return bucket.Put([]byte(clave), encoded)
	})
}

func mask(token string) string {
	if len(token) <= 8 {
		return "****"
	}
	return "****" + token[len(token)-4:]
}

// fault decides what happens to a call under clave: refuse it, or answer it
// too late.
func (s *Simulator) fault(clave string) (refuse, hang bool) {
	if s.opts.FailFor > 0 && time.Since(s.started) > s.opts.FailFor {
		return false, false
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(clave))
	share := float64(h.Sum64()%10_000) / 10_000
	refusable, hangable := share < s.opts.Unavailable, share >= s.opts.Unavailable && share < s.opts.Unavailable+s.opts.Hang
	if !refusable && !hangable {
		return false, false
	}
	s.mu.Lock()
	s.seen[clave]++
	call := s.seen[clave]
	s.mu.Unlock()
	refuse, hang = refusable && call <= s.opts.UnavailableCalls, hangable && call == 1
	if refuse || hang {
		s.injected.Add(1)
	}
	return refuse, hang
}
