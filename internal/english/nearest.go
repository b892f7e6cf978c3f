package english

// Nearest returns the known word of which name is most likely a mistyped form. It returns an empty string if no word
// is within two letters inserted, left out or replaced.
func Nearest(name string, known []string) string {
	best, distance := "", 3
	for _, word := range known {
		if d := editDistance(name, word); d < distance {
			best, distance = word, d
		}
	}
	return best
}

// editDistance is the Levenshtein distance.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j+1]+1, row[j]+1)
		}
	}
	return row[len(b)]
}
