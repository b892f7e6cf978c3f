package faults

import (
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// soakColors can be told apart by most who are colour-blind (Okabe and Ito).
var soakColors = []color.RGBA{{0, 114, 178, 255}, {230, 159, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255}}

const mib = 1 << 20

// plot draws the processes' memory over the keys that had come and over the time,
// and Redis's beside them.
func (rows soakRows) plot(path string, names []string) error {
	keys := func(r soakRow) float64 { return float64(r.keys) / 1e6 }
	minutes := func(r soakRow) float64 { return r.at.Minutes() }
	panels := []*plot.Plot{
		soakPanel("resident, MiB", "million keys that had come"), soakPanel("resident, MiB", "minutes"),
		soakPanel("Redis's used_memory, MiB", "minutes"),
	}
	for i, name := range names {
		resident := func(r soakRow) int64 { return r.rss[i] }
		for p, x := range map[*plot.Plot]func(soakRow) float64{panels[0]: keys, panels[1]: minutes} {
			if err := rows.line(p, name, soakColors[i%len(soakColors)], x, resident); err != nil {
				return err
			}
		}
	}
	for _, p := range panels[:2] {
		limit := plotter.NewFunction(func(float64) float64 { return soakLimit / mib })
		limit.Color, limit.Dashes = color.RGBA{200, 30, 30, 255}, []vg.Length{vg.Points(4), vg.Points(3)}
		p.Add(limit)
		p.Legend.Add("GOMEMLIMIT", limit)
		p.Y.Max = 1.8 * soakLimit / mib // room for the legend
	}
	if err := rows.line(panels[2], "", soakColors[3], minutes, func(r soakRow) int64 { return r.memory }); err != nil {
		return err
	}

	const width, height = 12 * vg.Inch, 3.4 * vg.Inch
	canvas := vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(80))
	c := draw.New(canvas)
	for i, p := range panels {
		from := width / 3 * vg.Length(i)
		p.Draw(draw.Crop(c, from+vg.Points(4), from+width/3-width-vg.Points(10), vg.Points(4), -vg.Points(6)))
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = vgimg.PngCanvas{Canvas: canvas}.WriteTo(f)
	return err
}

func soakPanel(y, x string) *plot.Plot {
	p := plot.New()
	p.Y.Label.Text, p.X.Label.Text, p.Y.Min = y, x, 0
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, vg.Points(8)
	return p
}

func (rows soakRows) line(p *plot.Plot, name string, c color.Color, x func(soakRow) float64,
	y func(soakRow) int64) error {
	points := make(plotter.XYs, len(rows))
	for i, r := range rows {
		points[i] = plotter.XY{X: x(r), Y: float64(y(r)) / mib}
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.Color, line.Width = c, vg.Points(0.8)
	p.Add(line)
	if name != "" {
		p.Legend.Add(name, line)
	}
	return nil
}
