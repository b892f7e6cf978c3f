package compare

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// palette is that of Okabe and Ito, which most who are colour-blind can tell
// apart; its yellow is left out, as it does not show on white.
var palette = []color.RGBA{
	{0, 114, 178, 255}, {230, 159, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}, {213, 94, 0, 255},
	{86, 180, 233, 255},
}

// dashes tell lines apart where they lie on each other.
var dashes = [][]vg.Length{nil, {6, 3}, {2, 2}, {9, 3, 2, 3}, {12, 5}}

var (
	limitColor  = color.RGBA{200, 30, 30, 255}
	oracleColor = color.RGBA{170, 170, 170, 255} // a band on which the exact ones lie
)

// curve is one line of a plot; its values are a step apart.
type curve struct {
	name   string
	values []int64
}

// picture is one plot.
type picture struct {
	y          string
	from, step int64 // ms since the trace began
	curves     []curve
	limit      int64 // a horizontal line; 0 for none
}

const (
	width, height = 11 * vg.Inch, 3.6 * vg.Inch
	legendWidth   = 2.2 * vg.Inch // of the whole width
)

// svg gives it for a page. No word of the trace's stands in it.
func (p picture) svg() (template.HTML, error) {
	canvas := vgsvg.New(width, height)
	if err := p.draw(draw.New(canvas)); err != nil {
		return "", err
	}
	var b bytes.Buffer
	if _, err := canvas.WriteTo(&b); err != nil {
		return "", fmt.Errorf("drawing: %w", err)
	}
	_, svg, _ := bytes.Cut(b.Bytes(), []byte("<svg")) // without the prolog of a file
	return template.HTML("<svg" + string(svg)), nil
}

func (p picture) draw(c draw.Canvas) error {
	d := plot.New()
	d.BackgroundColor = color.Transparent
	unit, name := timeUnit(p.from + p.step*int64(len(p.curves[0].values)))
	d.X.Label.Text, d.Y.Label.Text = name+" since the trace began", p.y
	legend := plot.NewLegend()
	legend.Left, legend.Top, legend.ThumbnailWidth = true, true, vg.Points(30)
	legend.YPosition = draw.PosCenter
	legend.Padding = vg.Points(3)
	highest := p.limit
	for i, c := range p.curves {
		points := make(plotter.XYs, len(c.values))
		for j, v := range c.values {
			points[j] = plotter.XY{X: float64(p.from+int64(j)*p.step) / unit, Y: float64(v)}
			highest = max(highest, v)
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("plotting %s: %w", c.name, err)
		}
		line.StepStyle = plotter.PostStep
		line.Color, line.Dashes, line.Width = palette[i%len(palette)], dashes[i%len(dashes)], vg.Points(1.4)
		if c.name == Oracle {
			line.Color, line.Dashes, line.Width = oracleColor, nil, vg.Points(5)
		}
		d.Add(line)
		legend.Add(c.name, line)
	}
	if p.limit > 0 {
		values := p.curves[0].values
		line, err := plotter.NewLine(plotter.XYs{
			{X: float64(p.from) / unit, Y: float64(p.limit)}, {X: float64(p.from+int64(len(values)-1)*p.step) / unit,
				Y: float64(p.limit)},
		})
		if err != nil {
			return fmt.Errorf("plotting the limit: %w", err)
		}
		line.Color, line.Width = limitColor, vg.Points(0.8)
		d.Add(line)
		legend.Add(fmt.Sprintf("limit %d", p.limit), line)
	}
	d.Y.Min, d.Y.Max = 0, max(1, float64(highest)*1.05)
	d.Draw(draw.Crop(c, 0, -legendWidth, 0, 0))
	legend.Draw(draw.Crop(c, width-legendWidth+vg.Points(12), 0, 0, -vg.Points(8)))
	return nil
}

// timeUnit is in what a span of so many ms is best read: ms in one, and its name.
func timeUnit(span int64) (ms float64, name string) {
	switch {
	case span < 10*60_000:
		return 1000, "seconds"
	case span < 10*3_600_000:
		return 60_000, "minutes"
	case span < 10*86_400_000:
		return 3_600_000, "hours"
	}
	return 86_400_000, "days"
}
