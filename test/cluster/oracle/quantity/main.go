// What Kubernetes makes of quantities: a JSON object a line with "a", and "b" or not; the same again with the answers.
//
//	go run ./oracle/quantity < ../../api/tests/quantity/cases.jsonl > new.jsonl
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"

	"k8s.io/apimachinery/pkg/api/resource"
)

type line struct {
	A string `json:"a"`
	B string `json:"b,omitempty"`

	Error      bool            `json:"error,omitempty"`
	Text       string          `json:"text,omitempty"`
	Format     resource.Format `json:"format,omitempty"`
	Sign       int             `json:"sign"`
	Value      *int64          `json:"value,omitempty"`
	Milli      *int64          `json:"milli,omitempty"`
	Int        *int64          `json:"int,omitempty"`
	Float      string          `json:"float"`
	Compared   int             `json:"compared"`
	Sum        string          `json:"sum,omitempty"`
	Difference string          `json:"difference,omitempty"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var asked line
		if err := json.Unmarshal(in.Bytes(), &asked); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		if err := out.Encode(answer(line{A: asked.A, B: asked.B, Float: "0"})); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
}

func answer(l line) line {
	a, err := resource.ParseQuantity(l.A)
	var b resource.Quantity
	if err == nil && l.B != "" {
		b, err = resource.ParseQuantity(l.B)
	}
	if err != nil {
		l.Error = true
		return l
	}
	l.Text, l.Format, l.Sign, l.Float = text(a.DeepCopy()), a.Format, a.Sign(), fmt.Sprint(a.AsApproximateFloat64())
	if whole, ok := a.AsInt64(); ok {
		l.Int = &whole
	}
	// Beyond these, and for long negative fractions, what Value says is no number near it.
	fits := func(limit int64) bool {
		long := a.DeepCopy()
		return a.Sign() >= 0 && long.CmpInt64(limit) <= 0
	}
	if fits(math.MaxInt64) {
		value := a.Value()
		l.Value = &value
	}
	if fits(resource.MaxMilliValue) {
		milli := a.MilliValue()
		l.Milli = &milli
	}
	if l.B != "" {
		sum, difference := a.DeepCopy(), a.DeepCopy()
		sum.Add(b.DeepCopy())
		difference.Sub(b.DeepCopy())
		l.Sum, l.Difference = text(sum), text(difference)
		long := a.DeepCopy()
		l.Compared = long.Cmp(b)
	}
	return l
}

// text is the canonical form: a parsed quantity would give back the text that it was parsed from.
// Empty where that lacks the zeros for which there is no suffix.
func text(q resource.Quantity) string {
	q.Neg()
	q.Neg()
	canonical := q.String()
	if again, err := resource.ParseQuantity(canonical); err != nil || again.Cmp(q) != 0 {
		return ""
	}
	return canonical
}
