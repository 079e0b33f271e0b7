"""What every process of the harness needs: seeds, signs of life, garbage collection, errors for users."""
