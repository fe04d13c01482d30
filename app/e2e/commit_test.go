package e2e_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"km0/modules/pagos/gateway"
	"km0/platform/testbed"
)

// TestTheRepeatOfACommittedOrderFindsIt is case C11 without chance: each order
// is committed, its answer is cut, the client is told 503, and its repeat gets
// the first result.
func TestTheRepeatOfACommittedOrderFindsIt(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{})
	c := s.through(t, "pedidos")
	p := s.start(t)
	const cuts = 20
	for i := range cuts {
		order, _ := invented(i)
		c.victim.Store(&order.ID)
		status, answer := postOnce(t, p, order)
		require.Equal(t, http.StatusServiceUnavailable, status, answer)
		require.Nil(t, c.victim.Load(), "the proxy must have cut the order's own connection")
		var found bool
		require.NoError(t, s.pools.Pedidos.QueryRow(t.Context(), `SELECT EXISTS (SELECT FROM pedidos WHERE id = $1)`, order.ID).Scan(&found))
		require.True(t, found, "order %s is committed although nobody heard", order.ID)
		status, answer = postOnce(t, p, order)
		require.Equal(t, http.StatusOK, status, answer)
		var view struct{ ID string }
		require.NoError(t, json.Unmarshal([]byte(answer), &view))
		require.Equal(t, order.ID, view.ID)
	}
	report := s.balanced(t, cuts)
	require.Zero(t, report.Counts.Duplicates, "one event of each")
	p.stop()
}

// through leads a database's connections through a cutter.
func (s *system) through(t *testing.T, name string) *cutter {
	t.Helper()
	cfg, err := pgx.ParseConfig(s.dsns[name])
	require.NoError(t, err)
	c := newCutter(t, cfg.Host+"/.s.PGSQL."+strconv.Itoa(int(cfg.Port)))
	host, port := c.addr()
	s.dsns[name] = testbed.With(testbed.With(s.dsns[name], "host", host), "port", port)
	return c
}

// postOnce places an order and repeats nothing.
func postOnce(t *testing.T, p *process, order any) (status int, answer string) {
	t.Helper()
	body, err := json.Marshal(order)
	require.NoError(t, err)
	res, err := client.Post(p.api+"/pedidos", "application/json", bytes.NewReader(body))
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	return res.StatusCode, string(text)
}

// TestALostAnswerToCommitIsNeitherAnErrorNorASecondOrder is case C11 at random
// moments: whatever was under way, committed or not, is cut.
func TestALostAnswerToCommitIsNeitherAnErrorNorASecondOrder(t *testing.T) {
	t.Parallel()
	s := newSystem(t, gateway.Options{})
	c := s.through(t, "pedidos")
	p := s.start(t)
	w := at(p)
	for i := range 20 {
		order, _ := invented(i)
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // anything may be under way
		c.armed.Store(true)
		require.NoError(t, post(t.Context(), w, i, "/pedidos", order))
	}
	require.Greater(t, c.cuts.Load(), int32(5), "the proxy must have cut")
	s.balanced(t, 20)
	p.stop()
}
