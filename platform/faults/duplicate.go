package faults

import (
	"math/rand/v2"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Duplicate publishes a fraction of the messages twice, as a broker or a relay
// that lost a confirmation would.
func Duplicate(p message.Publisher, fraction float64) message.Publisher {
	if fraction <= 0 {
		return p
	}
	return duplicator{p, fraction}
}

type duplicator struct {
	message.Publisher
	fraction float64
}

func (d duplicator) Publish(topic string, messages ...*message.Message) error {
	if err := d.Publisher.Publish(topic, messages...); err != nil {
		return err
	}
	for _, m := range messages {
		if rand.Float64() < d.fraction {
			if err := d.Publisher.Publish(topic, m.Copy()); err != nil {
				return err
			}
		}
	}
	return nil
}
